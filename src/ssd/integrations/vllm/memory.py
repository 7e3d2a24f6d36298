"""Divides the memory of a machine or a GPU between vLLM and its draft. Pure functions.

By default vLLM takes 92 % of all memory and fails if that is not free. Input: sizes of models and free
memory. Output: budgets in bytes, or a ValueError with a remedy.
"""

from dataclasses import dataclass, replace

from ssd.processes.host_memory import gib

_GIB = 1 << 30
_HEADROOM = 0.05
"""Share of all memory for other programs and fragmentation."""
_VLLM = int(2.5 * _GIB)
"""Memory of vLLM's processes without weights and KV cache: server, engine, worker, compilation."""
_RANK = _GIB
"""The same for each further rank."""
_DRAFT = int(0.75 * _GIB)
"""Memory of a draft's process without weights and KV cache."""
_DRAFT_ON_GPU = int(1.5 * _GIB)
"""Memory of a draft's CUDA context, captured steps and largest step."""
_VLLM_ON_GPU, _VLLM_SHARE = int(1.5 * _GIB), 0.04
"""The same of vLLM: these bytes, or this share of a larger GPU, where its steps are larger. vLLM measures it;
here it only decides what is refused."""
_DRAFTS_PART = 4
"""A draft's KV cache gets at most one in this many parts of the remaining memory."""
_USUAL_KV = 4 * _GIB
"""KV cache of vLLM on CPUs, which run few texts at a time; more only if one full-length text needs it."""
_MOST_OF_GPU = 0.92
"""vLLM's default share of a GPU."""
_TOKENS = 128
"""Suggested lengths are multiples of this: vLLM's block size on CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str
    weights: int
    kv_per_token: int = 0
    """0: unknown."""
    longest: int = 0
    """Longest text in tokens: vLLM does not start if its KV cache is smaller. 0: unknown."""
    most_texts: int = 0
    """Most texts at a time if the user gave it, else 0."""

    @property
    def usual_kv(self) -> int:
        """Preferred KV cache on CPUs in bytes."""
        one = self.kv_per_token * self.longest
        return one * self.most_texts or max(_USUAL_KV, one)

    def of_rank(self, ranks: int) -> "Target":
        """What each of vLLM's ranks holds of it."""
        return replace(self, weights=self.weights // ranks, kv_per_token=self.kv_per_token // ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    name: str
    weights: int
    kv: int
    """Preferred KV cache in bytes."""
    least_kv: int


@dataclass(frozen=True, slots=True)
class MemoryShares:
    draft_kv: int | None
    target_kv: int | None = None
    """Bytes for each rank; None: use `utilisation`."""
    utilisation: float | None = None


def share_host(
    total: int, available: int, target: Target, draft: Draft | None, *, ranks: int = 1
) -> MemoryShares:
    """Shares on CPUs. vLLM gets a size in bytes: a share of all memory might not be free."""
    needed = target.weights + _VLLM + (ranks - 1) * _RANK
    needed += 0 if draft is None else draft.weights + _DRAFT + draft.least_kv
    spare = available - int(_HEADROOM * total) - needed
    longest = target.kv_per_token * target.longest
    if spare <= 0:
        raise ValueError(_too_large(target, draft, needed=needed, available=available))
    if spare < longest:
        raise ValueError(_too_long(target, spare=spare, available=available))
    if draft is None:
        return MemoryShares(None, min(spare, target.usual_kv) // ranks)
    more = max(0, min(draft.kv - draft.least_kv, spare // _DRAFTS_PART, spare - longest))
    return MemoryShares(draft.least_kv + more, min(spare - more, target.usual_kv) // ranks)


def share_gpu(total: int, free: int, target: Target, draft: Draft) -> MemoryShares:
    """Shares on one GPU. vLLM takes a share of its memory, which leaves the draft's budget free."""
    budget = draft.weights + _DRAFT_ON_GPU + draft.least_kv
    left = free - int(_HEADROOM * total) - budget
    steps = max(_VLLM_ON_GPU, int(_VLLM_SHARE * total))
    spare = int(_utilisation(left, total) * total) - target.weights - steps
    longest = target.kv_per_token * target.longest
    if spare <= 0:
        raise ValueError(
            f"{target.name} and {draft.name} do not fit on one GPU: {gib(free)} of {gib(total)} are free, "
            f"and weights alone need {gib(target.weights + draft.weights)}: use a smaller or quantized "
            "model, another GPU (--draft-device cuda:N), or vLLM without --draft"
        )
    if spare < longest:
        raise ValueError(_too_long(target, spare=spare, available=free))
    more = max(0, min(draft.kv - draft.least_kv, spare // _DRAFTS_PART, spare - longest))
    return MemoryShares(draft.least_kv + more, utilisation=_utilisation(left - more, total))


def _utilisation(size: int, total: int) -> float:
    """A share of a GPU that is no more than this many bytes."""
    return int(min(_MOST_OF_GPU, size / total) * 1000) / 1000


def _too_long(target: Target, *, spare: int, available: int) -> str:
    longest = target.kv_per_token * target.longest
    return (
        f"a text of {target.longest} tokens needs {gib(longest)} of KV cache, and {gib(spare)} of the "
        f"{gib(available)} that are free are left for it: {_shorter(spare // target.kv_per_token)}"
    )


def _shorter(tokens: int) -> str:
    named = tokens // _TOKENS * _TOKENS
    remedy = f"use --max-model-len {named}, or" if named else "use a smaller model, or"
    return f"{remedy} free memory"


def _too_large(target: Target, draft: Draft | None, *, needed: int, available: int) -> str:
    names = f"{target.name} needs" if draft is None else f"{target.name} and {draft.name} need"
    return (
        f"{names} {gib(needed)} of memory without any KV cache of vLLM's, and {gib(available)} are free: "
        "use smaller models, free memory, or raise the limit of the container"
    )
