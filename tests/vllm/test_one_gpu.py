"""vLLM and a draft on one GPU: both fit whichever starts first, or one message says what to change.

The GPU is the stand-in, with tensors that have a size and no content. The draft plans by its own code, over
its real weights and KV pool; vLLM by the rules of its worker (`gpu_worker.py` of 0.32), as far as they depend
on memory.
"""

import gc
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

pytest.importorskip("hypothesis")  # It is not in vLLM's venv, which collects this file too.
from hypothesis import given
from hypothesis import strategies as st

from ssd.config import DraftConfig
from ssd.integrations.vllm.memory import Draft, MemoryShares, Target, share_gpu
from ssd.kvcache.pool import KVPool
from ssd.runtime.kv_planner import KVPlanner, pool_bytes
from ssd.runtime.memory import measured_plan
from ssd.selftest.made_up import MadeUpShape
from tests.runtime.stand_in import StandInDevice

GIB, META = 1 << 30, torch.device("meta")
CONTEXT = int(0.5 * GIB)
"""Of a process on a GPU, before its first tensor. Assumed, as are the next two: no GPU has said so."""
DRAFT_STEPS, DRAFT_LARGEST = GIB // 2, 3 * GIB // 8
"""Of the draft: captured steps, and its largest step."""
GPUS = {24: int(23.6 * GIB), 80: int(79.2 * GIB)}
"""By name, bytes that such a GPU has."""
LLAMA_8B = MadeUpShape(32, 4096, 14336, 32, 8, 128_256, 128)
LLAMA_1B = MadeUpShape(16, 2048, 8192, 32, 8, 128_256, 64)
QWEN_32B = MadeUpShape(64, 5120, 25600, 64, 8, 151_936, 128)
QWEN_8B = MadeUpShape(36, 4096, 12288, 32, 8, 151_936, 128)
QWEN_SMALL = MadeUpShape(28, 1024, 3072, 16, 8, 151_936, 128)


@dataclass(frozen=True)
class Pair:
    target: MadeUpShape
    draft: MadeUpShape
    longest: int
    is_tied: bool = True
    """The draft's head is its embedding; targets have both."""

    def sizes(self, longest: int | None = None) -> tuple[Target, Draft]:
        target = self.target.config
        kv = 4 * target.num_layers * target.num_kv_heads * target.head_dim
        weights = 2 * (target.num_parameters + target.vocab_size * target.hidden_size)
        least = max(pool_bytes(self.planner(1 << 40).one_block), 256 << 20)
        return (
            Target(name="target", weights=weights, kv_per_token=kv, longest=longest or self.longest),
            Draft(name="draft", weights=2 * self.draft.config.num_parameters, kv=2 * GIB, least_kv=least),
        )

    def planner(self, kv_bytes: int) -> KVPlanner:
        runner = DraftConfig(model="draft", kv_cache_bytes=kv_bytes).runner
        return KVPlanner(runner, self.draft.config, torch.bfloat16, META)


PAIRS = {
    "Llama-3.1-8B + 3.2-1B": Pair(LLAMA_8B, LLAMA_1B, 131_072),
    "Qwen3-8B + 0.6B": Pair(QWEN_8B, QWEN_SMALL, 40_960),
    "Qwen3-32B + 0.6B": Pair(QWEN_32B, QWEN_SMALL, 40_960),
}


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def taken(num_bytes: int) -> torch.Tensor:
    return torch.empty(max(0, num_bytes), dtype=torch.uint8, device=META)


def start_draft(gpu: StandInDevice, pair: Pair, shares: MemoryShares) -> list[object]:
    """What `load_model` does; the draft's own refusal is a ValueError."""
    held: list[object] = [taken(CONTEXT), taken(pair.sizes()[1].weights)]
    plan = measured_plan(gpu, partial(taken, DRAFT_LARGEST), partial(taken, DRAFT_STEPS), share=1.0)
    assert shares.draft_kv is not None
    shape = pair.planner(shares.draft_kv).within(plan)
    return [*held, KVPool(shape), taken(DRAFT_STEPS), taken(DRAFT_LARGEST)]


def start_vllm(
    gpu: StandInDevice, target: Target, shares: MemoryShares, meanwhile: Callable[[], object] = list
) -> list[object]:
    """Its worker's `request_memory` and `determine_available_memory`, then KV and graphs.

    `meanwhile`: what another process does between the two.
    """
    assert shares.utilisation is not None
    requested = int(shares.utilisation * gpu.total_bytes())
    free = gpu.free_bytes()
    assert free >= requested, "free memory is less than the desired utilization"
    held = [taken(CONTEXT), taken(target.weights), meanwhile()]
    # A forward of its largest batch, and its graphs, both larger on a larger GPU.
    steps = int(0.02 * gpu.total_bytes())
    kv = requested - (free - gpu.free_bytes()) - steps
    assert kv >= target.kv_per_token * target.longest, "the KV cache is too small for the longest text"
    return [*held, taken(kv), taken(steps)]


def start_both(gpu: StandInDevice, pair: Pair, target: Target, shares: MemoryShares, first: str) -> int:
    """Bytes that are left; none may be missing."""
    starts = [partial(start_draft, gpu, pair, shares), partial(start_vllm, gpu, target, shares)]
    held = [start() for start in (starts if first == "draft" else reversed(starts))]
    left = gpu.free_bytes()
    assert left >= 0
    assert held
    return left


def refused(total: int, free: int, target: Target, draft: Draft) -> str:
    """One sentence with a remedy; empty: they fit."""
    try:
        share_gpu(total, free, target, draft)
    except ValueError as error:
        said = str(error)
    else:
        return ""
    assert re.fullmatch(r"[^\n]* use [^\n]*", said)
    return said


@pytest.mark.parametrize("first", ["draft", "vLLM"])
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("size", GPUS)
def test_both_fit_in_either_order_or_one_message_says_what_to_change(
    size: int, name: str, first: str
) -> None:
    pair, total = PAIRS[name], GPUS[size]
    target, draft = pair.sizes()
    refusal = refused(total, total, target, draft)
    if (size, name) == (24, "Qwen3-32B + 0.6B"):
        assert "do not fit on one GPU: 23.60 GiB of 23.60 GiB are free" in refusal
        return
    if refusal:
        named = re.search(r"use --max-model-len (\d+)", refusal)
        assert named is not None, refusal
        target = replace(target, longest=int(named[1]))
    shares = share_gpu(total, total, target, draft)
    left = start_both(StandInDevice(total), pair, target, shares, first)
    # And little of it is wasted: vLLM has the most that it takes by itself, or the rest.
    assert shares.utilisation is not None
    assert shares.utilisation == 0.92 or left < 0.08 * total


@pytest.mark.parametrize(
    ("size", "name", "longest"),
    [
        (24, "Llama-3.1-8B + 3.2-1B", 10_000),
        (24, "Qwen3-8B + 0.6B", 5_000),
        (80, "Llama-3.1-8B + 3.2-1B", None),
        (80, "Qwen3-8B + 0.6B", None),
        (80, "Qwen3-32B + 0.6B", 30_000),
    ],
)
def test_what_fits_is_not_refused(size: int, name: str, longest: int | None) -> None:
    share_gpu(GPUS[size], GPUS[size], *PAIRS[name].sizes(longest))


def test_started_together_vllm_pays_for_the_draft_twice() -> None:
    """Why the command starts the draft after vLLM: what it takes meanwhile is taken from vLLM's KV cache."""
    pair, total = PAIRS["Qwen3-32B + 0.6B"], GPUS[80]
    target, draft = pair.sizes(30_000)
    shares = share_gpu(total, total, target, draft)
    gpu = StandInDevice(total)
    with pytest.raises(AssertionError, match="too small for the longest text"):
        start_vllm(gpu, target, shares, lambda: start_draft(gpu, pair, shares))


@given(
    weights=st.integers(1, 80 * GIB),
    drafts=st.integers(1, 8 * GIB),
    longest=st.integers(0, 200_000),
    used=st.integers(0, 20 * GIB),
)
def test_budgets_never_exceed_what_is_free(weights: int, drafts: int, longest: int, used: int) -> None:
    total = GPUS[80]
    target = Target(name="t", weights=weights, kv_per_token=128 << 10, longest=longest)
    draft = Draft(name="d", weights=drafts, kv=2 * GIB, least_kv=GIB // 4)
    if refused(total, total - used, target, draft):
        return
    shares = share_gpu(total, total - used, target, draft)
    assert shares.utilisation is not None
    assert shares.draft_kv is not None
    assert GIB // 4 <= shares.draft_kv <= 2 * GIB
    assert shares.utilisation * total + drafts + shares.draft_kv + 1.5 * GIB <= total - used
    assert shares.utilisation * total >= weights + (128 << 10) * longest
