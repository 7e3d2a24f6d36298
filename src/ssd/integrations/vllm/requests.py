"""Decides which requests of vLLM get a draft, and converts their parameters.

Uses vLLM's records by field name, so it needs no vLLM. A request whose parameters the draft protocol does not
support runs without a draft.
"""

from typing import Any

from ssd.draft.protocol.messages import MAX_ID, MAX_TOKENS, Sampling
from ssd.draft.protocol.rules import UnsendableError, sendable

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


def wire_sampling(params: Any, seed: int, *, coupled: bool) -> Sampling:
    """vLLM's parameters as they travel; UnsendableError where they cannot.

    Without coupling the target's choices are beyond foretelling: the likeliest tokens are guessed.
    """
    try:
        return sendable(_sampling(params, seed, coupled=coupled), MAX_ID)
    except (TypeError, AttributeError) as error:
        raise UnsendableError(f"its parameters are of another kind: {error}") from error


def _sampling(params: Any, seed: int, *, coupled: bool) -> Sampling:
    return Sampling(
        seed=seed & _SEED_MASK,
        temperature=params.temperature if coupled else 0.0,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        min_tokens=params.min_tokens,
        end_ids=sorted(params.all_stop_token_ids),
        bad_word_ids=[list(word) for word in params.bad_words_token_ids or ()],
    )
