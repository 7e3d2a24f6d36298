"""Memory of one machine or one GPU, shared out between vLLM and the draft beside it. Pure.

vLLM by itself takes 92 % of all memory, and ends if that is not free: it does not know of the draft. Sizes
of models and of free memory come in; budgets in bytes come out, or a ValueError that says what to change.
"""

from dataclasses import dataclass

from ssd.processes.host_memory import gib

_GIB = 1 << 30
_HEADROOM = 0.05
"""Of all memory: for other programs, and for memory that is free in pieces only."""
_VLLM = int(2.5 * _GIB)
"""What vLLM's processes take beside weights and KV: server, engine, worker and the compilation of steps."""
_RANK = _GIB
"""Of it for each further rank."""
_DRAFT = int(0.75 * _GIB)
"""What a draft's process takes beside weights and KV."""
_ON_GPU = int(1.5 * _GIB)
"""A draft's CUDA context, captured steps and largest step."""
_DRAFTS_PART = 4
"""A draft's KV gets at most one part in so many of what weights leave."""
_USUAL_KV = 4 * _GIB
"""KV of vLLM on CPUs, which read few texts at a time: more only if one text of full length needs it."""
_MOST_OF_GPU = 0.92
"""vLLM's own default for a GPU that it has alone."""
_TOKENS = 128
"""Lengths of texts are named in multiples of vLLM's blocks on CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str
    weights: int
    kv_per_token: int = 0
    """0: not known."""
    longest: int = 0
    """Tokens that one text may have: vLLM does not start if they do not fit. 0: not known."""
    most_texts: int = 0
    """At a time, if somebody said so."""

    @property
    def usual_kv(self) -> int:
        """Bytes of KV cache to take on CPUs if there are enough."""
        one = self.kv_per_token * self.longest
        return one * self.most_texts or max(_USUAL_KV, one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    name: str
    weights: int
    kv: int
    """Bytes that it would take if there were enough."""
    least_kv: int


@dataclass(frozen=True, slots=True)
class MemoryShares:
    draft_kv: int | None
    target_kv: int | None = None
    """Of each rank; None: by utilisation."""
    utilisation: float | None = None


def share_host(
    total: int, available: int, target: Target, draft: Draft | None, *, ranks: int = 1
) -> MemoryShares:
    """Both on CPUs. vLLM is told bytes: then it does not ask for a part of all memory that may be taken."""
    needed = target.weights + _VLLM + (ranks - 1) * _RANK
    needed += 0 if draft is None else draft.weights + _DRAFT + draft.least_kv
    spare = available - int(_HEADROOM * total) - needed
    longest = target.kv_per_token * target.longest
    if spare <= 0:
        raise ValueError(_too_large(target, draft, needed=needed, available=available))
    if spare < longest:
        raise ValueError(
            f"a text of {target.longest} tokens needs {gib(longest)} of KV cache, and {gib(spare)} of the "
            f"{gib(available)} that are free are left for it: {_shorter(spare // target.kv_per_token)}"
        )
    if draft is None:
        return MemoryShares(None, min(spare, target.usual_kv) // ranks)
    more = max(0, min(draft.kv - draft.least_kv, spare // _DRAFTS_PART, spare - longest))
    return MemoryShares(draft.least_kv + more, min(spare - more, target.usual_kv) // ranks)


def share_gpu(total: int, free: int, target: Target, draft: Draft) -> MemoryShares:
    """Both on one GPU. vLLM takes a part of all its memory, which the draft's budget must leave free."""
    budget = draft.weights + _ON_GPU
    left = free - budget - draft.least_kv - int(_HEADROOM * total) - target.weights
    if left <= 0:
        raise ValueError(
            f"{target.name} and {draft.name} do not fit on one GPU: {gib(free)} of {gib(total)} are free, "
            f"and weights alone need {gib(target.weights + draft.weights)}: use --draft-device cpu, another "
            "GPU, or a smaller model"
        )
    kv = draft.least_kv + max(0, min(draft.kv - draft.least_kv, left // _DRAFTS_PART))
    part = min(_MOST_OF_GPU, (free - budget - kv) / total - _HEADROOM)
    return MemoryShares(kv, utilisation=int(part * 100) / 100)


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
