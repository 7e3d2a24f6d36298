"""vLLM's records as its scheduler hands them to a worker, by the fields that matter; needs no vLLM."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any


def params(**changes: Any) -> SimpleNamespace:
    usual = {
        "seed": None,
        "temperature": 0.7,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "min_tokens": 0,
        "max_tokens": 8,
        "all_stop_token_ids": {2},
        "bad_words_token_ids": None,
        "extra_args": None,
    }
    return SimpleNamespace(**{**usual, **changes})


def new(request_id: str, prompt: Sequence[int] | None = (1, 2, 3), **changes: Any) -> SimpleNamespace:
    usual = {
        "req_id": request_id,
        "prompt_token_ids": None if prompt is None else list(prompt),
        "sampling_params": params(),
        "pooling_params": None,
        "prompt_embeds": None,
        "mm_features": [],
    }
    return SimpleNamespace(**{**usual, **changes})


def scheduled(
    *begun: SimpleNamespace,
    finished: Sequence[str] = (),
    running: Mapping[str, int] | None = None,
    drafted: Mapping[str, Sequence[int]] | None = None,
    preempted: Sequence[str] = (),
    most_drafted: int = 8,
) -> SimpleNamespace:
    """`running`: how many query rows each live request has; new ones have their prompt's.

    `most_drafted`: the number of tokens that vLLM lets be drafted for the next step.
    """
    counts = {**{each.req_id: len(each.prompt_token_ids or ()) for each in begun}, **(running or {})}
    return SimpleNamespace(
        scheduled_new_reqs=list(begun),
        finished_req_ids=set(finished),
        preempted_req_ids=set(preempted),
        num_scheduled_tokens=counts,
        total_num_scheduled_tokens=sum(counts.values()),
        num_spec_tokens_to_schedule=most_drafted,
        scheduled_spec_decode_tokens={key: list(tokens) for key, tokens in (drafted or {}).items()},
    )
