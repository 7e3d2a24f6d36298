"""Every field of vLLM's own request classes, through a worker's sessions and a real socket to a real draft.

What vLLM takes and no draft can be told costs its own request the draft: nobody is opened again, nobody
reconnects. Our own server's fields are walked in tests/draft/test_hostile_requests.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ssd.integrations.vllm.meter import Meter
from ssd.integrations.vllm.sessions import Sessions
from tests.draft.hostile_values import VALUES
from tests.draft.served import Honest, Served, speculator_at, undisturbed
from tests.vllm.records import new, params, scheduled

_LIVE = 4
"""Hostile requests that are open at once: some make every step of the draft slow."""
_PLAIN = {name for name in vars(params()) if name not in ("all_stop_token_ids", "bad_words_token_ids")}


class Beside:
    """A draft, honest sequences on it, and the sessions of a worker beside these."""

    def __init__(self, folder: Path) -> None:
        self._draft = Served(f"ipc://{folder}/draft")
        self.speculator = speculator_at(self._draft.address)
        self.honest = Honest(self.speculator, ("one", "two", "three", "four"))
        self.sessions = Sessions(
            self.speculator, lambda request_id: 7, max_model_len=512, meter=Meter(exported=False)
        )
        self._num_begun = 0
        self.honest.rounds_until_hits()

    def begin(self, **changes: Any) -> None:
        """A request that lives until a few more have begun."""
        self._num_begun += 1
        gone = [str(self._num_begun - _LIVE)]
        self.sessions.begin(scheduled(new(str(self._num_begun), **changes), finished=gone))
        self.sessions.settle([str(self._num_begun)], [[5]])

    def close(self) -> None:
        self.speculator.close()
        self._draft.close()


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    found = Beside(tmp_path_factory.mktemp("draft"))
    yield found
    found.close()


def test_prompts_that_no_model_has_cost_their_request_alone(beside: Beside) -> None:
    with undisturbed(beside.speculator, beside.honest):
        for prompt in ([-1], [2**31], [2**70], [399, 400], [0] * 70_000):
            beside.begin(prompt=prompt)
        beside.honest.rounds_until_hits()


@pytest.mark.vllm
def test_every_field_of_vllms_requests_costs_its_request_alone(beside: Beside) -> None:
    sampling = pytest.importorskip("vllm.sampling_params")
    seen = set[str]()
    with undisturbed(beside.speculator, beside.honest):
        for name, given in _of_vllm(sampling.SamplingParams):
            beside.begin(sampling_params=given)
            if name not in seen:
                seen.add(name)
                beside.honest.rounds_until_hits()
    assert seen >= {name for name in sampling.SamplingParams.__struct_fields__ if name in _PLAIN}
    assert {"stop_token_ids", "bad_words", "logit_bias", "_bad_words_token_ids"} <= seen


def _of_vllm(kind: Any) -> Iterator[tuple[str, Any]]:
    """Of each field of SamplingParams and of the bodies of vLLM's API, each value that vLLM takes."""
    for name in kind.__struct_fields__:
        for value in VALUES:
            made = _made(lambda **each: kind(**{"max_tokens": 8, **each}), {name: value})
            if made is not None and (made.max_tokens is None or isinstance(made.max_tokens, int)):
                yield name, made
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    for name in CompletionRequest.model_fields:
        for value in VALUES:
            made = _made(
                lambda **each: CompletionRequest(**{"model": "m", "prompt": "x", **each}).to_sampling_params(
                    8, {}
                ),
                {name: value},
            )
            if made is not None:
                yield name, made


def _made(make: Any, given: dict[str, Any]) -> Any:
    try:
        made = make(**given)
        made.update_from_generation_config({}, 0)
    except Exception:  # vLLM refuses it, by whatever error.
        return None
    return made
