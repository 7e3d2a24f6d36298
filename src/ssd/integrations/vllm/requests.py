"""Decides which requests of vLLM get a draft, and converts their parameters.

Uses vLLM's records by field name, so it needs no vLLM. A request whose parameters the draft protocol does not
support runs without a draft.
"""

import copy
import operator
from collections.abc import Callable
from typing import Any

from ssd.draft.protocol.codec import UnsendableError, sendable
from ssd.draft.protocol.messages import MAX_ID, MAX_TOKENS, Sampling

DRAFT_NAME = "ssd_draft"
"""Key of `extra_args` (`vllm_xargs` over HTTP) for the name of the drafts to use."""
_SEED_MASK = 2**64 - 1


def why_declined(new: Any) -> str:
    """Why a request runs without a draft, as a label for metrics; empty if it gets one."""
    if new.pooling_params is not None or new.sampling_params is None:
        return "pooling"
    if new.prompt_embeds is not None or new.prompt_token_ids is None:
        return "prompt_embeds"
    if new.mm_features:
        return "images"
    if getattr(new.sampling_params, "thinking_token_budget", None) is not None:
        # If several tokens end thinking, vLLM forces different tokens in verified rows than in plain ones.
        return "thinking"
    if not 0 < len(new.prompt_token_ids) <= MAX_TOKENS:
        return "length"
    return ""


def max_len_of(new: Any, max_model_len: int) -> int:
    """Most tokens of the request: its prompt and its output."""
    most = new.sampling_params.max_tokens
    longest = max_model_len if most is None else len(new.prompt_token_ids) + most
    return min(longest, max_model_len)


def draft_name_of(new: Any) -> str:
    """Name of the drafts that the request asks for; empty: any."""
    extra = new.sampling_params.extra_args
    named = extra.get(DRAFT_NAME, "") if isinstance(extra, dict) else ""
    return named if isinstance(named, str) else ""


def with_seeds(scheduled: Any, seed_of: Callable[[str, int | None], int | None]) -> Any:
    """The scheduler's output with other seeds: `seed_of` returns that of a request, given its own.

    Copies what it changes, because the scheduler may be in this process and uses the same records.
    """
    requests = [_with_seed(new, seed_of) for new in scheduled.scheduled_new_reqs]
    if all(map(operator.is_, requests, scheduled.scheduled_new_reqs)):
        return scheduled
    changed = copy.copy(scheduled)
    changed.scheduled_new_reqs = requests
    return changed


def _with_seed(new: Any, seed_of: Callable[[str, int | None], int | None]) -> Any:
    if new.sampling_params is None:
        return new
    seed = seed_of(new.req_id, new.sampling_params.seed)
    if seed == new.sampling_params.seed:
        return new
    changed = copy.copy(new)
    changed.sampling_params = copy.copy(new.sampling_params)
    changed.sampling_params.seed = seed
    return changed


def text_of(new: Any) -> list[int]:
    """Tokens of a request when it begins: its prompt, and after a preemption (V2) its output too."""
    tokens: list[int] = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids
    return tokens


def wire_sampling(params: Any, seed: int, *, coupled: bool, noise: str = "philox") -> Sampling:
    """vLLM's parameters as they are sent; UnsendableError if they cannot be.

    Without coupling the target's samples cannot be predicted: the draft guesses the likeliest tokens.
    """
    try:
        return sendable(_sampling(params, seed, noise, coupled=coupled), MAX_ID)
    except (TypeError, AttributeError) as error:
        raise UnsendableError(f"its parameters are of another kind: {error}") from error


def _sampling(params: Any, seed: int, noise: str, *, coupled: bool) -> Sampling:
    return Sampling(
        seed=seed & _SEED_MASK,
        noise=noise,
        temperature=params.temperature if coupled else 0.0,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        min_tokens=params.min_tokens,
        end_ids=sorted(params.all_stop_token_ids),
        bad_word_ids=[list(word) for word in params.bad_words_token_ids or ()],
    )
