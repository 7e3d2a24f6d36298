"""Places vLLM and its draft on GPUs or cores, and describes the placement in a sentence.

Knows GPU names, core numbers and the environment variables that bind a process to them. The caller passes
the GPUs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ssd.config import EngineConfig

_GPUS = "CUDA_VISIBLE_DEVICES"
_BELOW_VLLM = {"CUDA_MPS_CLIENT_PRIORITY": "1"}
"""Under NVIDIA's MPS the kernels of a draft that shares vLLM's GPU yield to vLLM's. No effect without MPS."""
CORES = "VLLM_CPU_OMP_THREADS_BIND"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    config: EngineConfig
    """With the draft's device and cores filled in."""
    words: str
    target: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for vLLM."""
    draft: Mapping[str, str] = field(default_factory=dict)
    on_gpus: bool = False
    shared_gpu: str = ""
    """The GPU on which both compute, as CUDA_VISIBLE_DEVICES names it; empty: none."""
    memory: Sequence[str] = ()
    """vLLM's memory flags."""


def as_named(config: EngineConfig, *, ranks: int) -> Placement:
    """The placement that flags name, without anything specific to this machine."""
    target = {}
    if config.cores:
        target[CORES] = "|".join(_spelled(share) for share in _shares(config.cores, ranks))
    if ":" in config.device:
        target[_GPUS] = config.device.rpartition(":")[2]
    return Placement(config=config, words="", target=target)


def on_cores(config: EngineConfig, *, ranks: int, bound: str | None = None) -> Placement:
    """Placement on CPUs, with cores divided as in our own engine. `bound`: vLLM's own setting of cores."""
    from ssd.engine.drafting import with_own_cores

    config = with_own_cores(config)
    if bound is not None:
        target, place = {}, f"vLLM where {CORES} says ({bound})"
    elif config.cores:
        bind = "|".join(_spelled(share) for share in _shares(config.cores, ranks))
        target, place = {CORES: bind}, f"vLLM on cores {bind}"
    else:
        target, place = {}, "vLLM on all cores"
    if (draft := config.own_draft) is None:
        words = place
    else:
        cores = _spelled(draft.cores)
        words = f"{place}; the draft on {f'cores {cores}' if cores else 'any core'}"
    return Placement(config=config, words=words, target=target)


def on_gpus(config: EngineConfig, gpus: Sequence[str], *, ranks: int) -> Placement:
    """`gpus` are those this process may use, as CUDA_VISIBLE_DEVICES names them.

    The draft gets the last one that vLLM's ranks leave. If they leave none, it shares their last one: a CPU
    takes longer for a draft step than a GPU for a verification.
    """
    targets = [_named(config.device, gpus)] if ":" in config.device else list(gpus)
    drafting = _draft_gpu(config, targets, gpus, ranks=ranks)
    others = [gpu for gpu in targets if gpu != drafting]
    shares = len(others) < ranks and drafting in targets and len(targets) >= ranks
    targets = targets if shares else others
    if len(targets) < ranks:
        raise ValueError(
            f"{ranks} ranks of vLLM need more than the {len(gpus)} GPUs there are: lower "
            "--tensor-parallel-size, or name other GPUs in CUDA_VISIBLE_DEVICES"
        )
    place = f"vLLM on GPU {','.join(targets)}"
    draft = config.draft
    if draft is None or draft.is_elsewhere:
        return Placement(config=config, words=place, target={_GPUS: ",".join(targets)}, on_gpus=True)
    if drafting is None:
        words = f"{place}; the draft on the CPU"
        # Leave cores for vLLM's host work, which GPU steps wait for.
        draft = replace(draft, device="cpu", cores=draft.cores or _cores_beside())
    else:
        words = f"{place}; the draft on GPU {drafting}"
        if shares:
            words += ", which they share (`ssd doctor --model … --draft …` says whether that pays)"
        draft = replace(draft, device="cuda")
    return Placement(
        config=replace(config, draft=draft),
        words=words,
        target={_GPUS: ",".join(targets)},
        draft={_GPUS: drafting or "", **(_BELOW_VLLM if shares else {})},
        on_gpus=True,
        shared_gpu=drafting if drafting and shares else "",
    )


def _cores_beside() -> tuple[int, ...]:
    from ssd.runtime.cores import share_out

    return share_out().draft


def _draft_gpu(
    config: EngineConfig, targets: Sequence[str], gpus: Sequence[str], *, ranks: int
) -> str | None:
    """None: the draft runs on the CPU, or there is none."""
    draft = config.own_draft
    if draft is None or draft.device == "cpu":
        return None
    if ":" in draft.device:
        return _named(draft.device, gpus)
    left = [gpu for gpu in gpus if gpu not in targets] or list(targets[ranks:])
    return (left or list(targets))[-1]


def _named(device: str, gpus: Sequence[str]) -> str:
    """`cuda:1` is the second of those that are visible."""
    number = device.removeprefix("cuda:")
    if not number.isdigit() or int(number) >= len(gpus):
        raise ValueError(
            f"there is no {device}: {len(gpus)} GPUs are visible, cuda:0 to cuda:{len(gpus) - 1}"
        )
    return gpus[int(number)]


def _shares(cores: Sequence[int], ranks: int) -> list[Sequence[int]]:
    """Cores of each rank, divided evenly."""
    if len(cores) < ranks:
        raise ValueError(
            f"{ranks} ranks of vLLM need a core each, and it has {len(cores)}: name more with --cores"
        )
    ends = [len(cores) * (rank + 1) // ranks for rank in range(ranks)]
    return [cores[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _spelled(cores: Sequence[int]) -> str:
    return ",".join(map(str, cores))
