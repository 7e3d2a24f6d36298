"""A request of vLLM as the draft sees it: which ones are drafted, and by which parameters.

Takes vLLM's records by the names of their fields, so it needs no vLLM. vLLM accepts parameters that no draft
can be told: they cost their own request its draft.
"""

from typing import Any

from ssd.draft.protocol.messages import MAX_ID, MAX_TOKENS, Sampling
from ssd.draft.protocol.rules import UnsendableError, sendable

DRAFT_NAME = "ssd_draft"
"""Key of `extra_args` (`vllm_xargs` over HTTP): the name of the drafts that are to guess."""
_SEED_MASK = 2**64 - 1


def why_declined(new: Any) -> str:
    """Why a new request runs without a draft: a short word for the metrics. Empty: it is drafted."""
    if new.pooling_params is not None or new.sampling_params is None:
        return "pooling"
    if new.prompt_embeds is not None or new.prompt_token_ids is None:
        return "prompt_embeds"
    if new.mm_features:
        return "images"
    if getattr(new.sampling_params, "thinking_token_budget", None) is not None:
        # Where thinking ends with several tokens, vLLM forces others in verified rows than in plain ones.
        return "thinking"
    if not 0 < len(new.prompt_token_ids) <= MAX_TOKENS:
        return "length"
    return ""


def max_len_of(new: Any, max_model_len: int) -> int:
    """Its prompt and the most it may generate."""
    most = new.sampling_params.max_tokens
    longest = max_model_len if most is None else len(new.prompt_token_ids) + most
    return min(longest, max_model_len)


def draft_name_of(new: Any) -> str:
    """The name of the drafts that its sender asks for; empty: any."""
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
