"""Who is loaded together: as many workers as memory holds, this engine in every wave.

Peers take turns prompt by prompt within a wave, so a ratio is taken between neighbours in time. Those that do
not fit wait for the next wave, in which this engine is measured again beside them. Where it takes no part,
the engines with our draft inside them are those that are measured again.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.cases import own_case
from benchmarks.peers.process import WorkerPlan
from benchmarks.peers.registry import SSD, Peer, is_gguf
from ssd.bench.cases import parse_case
from ssd.config import Precision, RunnerConfig
from ssd.runtime.memory_needs import memory_needs

_OF_ITS_OWN = 1 << 30
"""A runtime, its buffers and its KV cache, whatever the model."""


def weights_of(path: Path) -> int:
    """Bytes of a model's weights in any form: what a process that loads it takes at least."""
    suffixes = (".safetensors", ".gguf", ".bin")
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.glob("*") if each.suffix in suffixes)


def expected_bytes(peer: Peer, cases: Sequence[str], target: Path, draft: Path | None, dtype: str) -> int:
    if is_gguf(str(target)) and peer.name == SSD:
        return _OF_ITS_OWN + _unpacked_bytes(cases, target, draft, dtype)
    weights = weights_of(target) + (weights_of(draft) if draft is not None else 0)
    # Nearly every folder holds 16 bits a weight.
    growth = 2 if dtype == "float32" and peer.form == "folder" else 1
    # A program reorders four-bit weights into memory of its own; others it only maps.
    copies = len(cases) if is_gguf(str(target)) and peer.starts_each_case else peer.copies
    return _OF_ITS_OWN + int(copies * growth * weights)


def _unpacked_bytes(cases: Sequence[str], target: Path, draft: Path | None, dtype: str) -> int:
    """Of this engine: a target for each of its precisions, and a draft for each case that has one."""
    own_cases = [own_case(case) for case in cases]
    runners = [_runner(target, dtype, precision) for precision in {each for _, each in own_cases}]
    parsed = [parse_case(own) for own, _ in own_cases]
    if draft is not None:
        runners += [
            _runner(draft, dtype, each.draft_precision or "model") for each in parsed if each.mode != "ar"
        ]
    return sum(memory_needs("", runner).weights for runner in runners)


def _runner(model: Path, dtype: str, precision: Precision) -> RunnerConfig:
    return RunnerConfig(model=str(model), device="cpu", dtype=dtype, precision=precision, kv_cache_bytes=0)  # type: ignore[arg-type]  # checked by the settings


def always_there(plans: Sequence[WorkerPlan]) -> list[WorkerPlan]:
    """Those that are in every wave."""
    ours = [plan for plan in plans if plan.peer.name == SSD]
    return ours or [plan for plan in plans if plan.has_our_draft]


def into_waves(plans: Sequence[WorkerPlan], memory: int) -> list[list[WorkerPlan]]:
    """First fit, in order; a worker too large for what is left beside this engine is tried anyway."""
    ours = always_there(plans)
    room = memory - sum(plan.num_bytes for plan in ours)
    waves: list[list[WorkerPlan]] = []
    for plan in plans:
        if plan in ours:
            continue
        fitting = (wave for wave in waves if sum(each.num_bytes for each in wave) + plan.num_bytes <= room)
        wave = next(fitting, None)
        if wave is None:
            waves.append([plan])
        else:
            wave.append(plan)
    return [[*ours, *wave] for wave in waves] or [ours]


def continued_waves(
    names: Sequence[Sequence[str]], plans: Sequence[WorkerPlan], memory: int
) -> list[list[WorkerPlan]]:
    """Waves as earlier sessions had them, without those that are gone; who is new comes after them."""
    by_name = {plan.name: plan for plan in plans}
    known, ours = {name for wave in names for name in wave}, always_there(plans)
    waves = [[by_name[name] for name in wave if name in by_name] for wave in names]
    new = [plan for plan in plans if plan.name not in known or plan in ours]
    if not names or len(new) > len(ours):
        waves += into_waves(new, memory)
    return waves
