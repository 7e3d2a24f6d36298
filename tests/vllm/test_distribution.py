"""Tokens of a real vLLM, drafted and not, against softmax(z/T) of the same model in transformers.

Where a token lies in its own distribution, likeliest first, is uniform if the sampler is right, whatever text
it follows; so tokens of all texts make one statistic. Which token comes first is compared one by one.
"""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from campaigns.vllm.distribution import CASES, NUM_TOKENS, PROMPT
from tests.tiny import write_checkpoint
from tests.vllm import programs

pytestmark = pytest.mark.vllm

Floats = NDArray[np.float64]
CELLS = 10
LIMIT = 50.2
"""Of chi-square with 9 degrees of freedom: exceeded less than once in 10⁷ times, and a run makes twelve."""
OFF = 1.1
"""A temperature that is so much higher must be noticed."""
KINDS = [(name, is_drafted) for name in CASES for is_drafted in (False, True)]


class Samples:
    """What vLLM said in one case, and the logits that each token was drawn from."""

    def __init__(self, model: Any, record: dict[str, Any]) -> None:
        self.record, self.sampling = record, CASES[record["case"]]
        self.tokens = np.array(record["texts"])
        read = torch.tensor([PROMPT + text[:-1] for text in record["texts"]])
        with torch.inference_mode():
            logits = torch.cat([model(part).logits[:, -NUM_TOKENS:] for part in torch.split(read, 500)])
        self.logits = logits.double().numpy()

    def chances(self, places: slice, factor: float = 1.0) -> tuple[Floats, NDArray[np.int64]]:
        """Distributions [N, V] at these places of all texts, and the tokens drawn there."""
        logits = self.logits[:, places].reshape(-1, self.logits.shape[-1])
        return _softmax(logits, self.sampling, factor), self.tokens[:, places].reshape(-1)


def _softmax(logits: Floats, sampling: dict[str, float], factor: float) -> Floats:
    scores = logits / (factor * sampling["temperature"])
    chances: Floats = np.exp(scores - scores.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    order = np.argsort(-chances, axis=-1)
    ranked = np.take_along_axis(chances, order, -1)
    # Those before which the others do not reach top_p.
    ranked[np.cumsum(ranked, -1) - ranked >= sampling.get("top_p", 1.0)] = 0.0
    np.put_along_axis(chances, order, ranked, -1)
    chances /= chances.sum(-1, keepdims=True)
    return chances


def _chi_square(counts: NDArray[np.int64], chances: Floats) -> float:
    expected = counts.sum() * chances
    return float(((counts - expected) ** 2 / expected).sum())


def by_place(chances: Floats, tokens: NDArray[np.int64]) -> float:
    """Of where tokens lie among what was likelier; a random point within the token's own share."""
    own = np.take_along_axis(chances, tokens[:, None], -1)
    likelier = np.where(chances > own, chances, 0.0).sum(-1)
    places = likelier + own[:, 0] * np.random.default_rng(0).random(len(tokens))
    counts = np.bincount(np.minimum(places * CELLS, CELLS - 1).astype(int), minlength=CELLS)
    return _chi_square(counts, np.full(CELLS, 1 / CELLS))


def by_token(chances: Floats, tokens: NDArray[np.int64]) -> float:
    """Of the likeliest tokens, and all others together, where every text is the same."""
    likeliest = np.argsort(-chances[0])[: CELLS - 1]
    counts = np.array([(tokens == each).sum() for each in likeliest])
    shares = chances[0][likeliest]
    return _chi_square(np.append(counts, len(tokens) - counts.sum()), np.append(shares, 1 - shares.sum()))


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Samples]:
    if find_spec("vllm") is None:
        pytest.skip("no vLLM")
    # Its heads are as wide as vLLM's attention wants them.
    model = write_checkpoint("qwen3", tmp_path_factory.mktemp("model"))
    records = programs.run(
        "distribution", tmp_path_factory.mktemp("record") / "record", "--model", model, timeout=600
    )
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return {(each["case"], each["is drafted"]): Samples(loaded, each) for each in records}


FIRST, LATER = slice(0, 1), slice(1, None)
"""A first token is decided by a prompt's last row, later ones by rows that may carry drafted tokens."""


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_spread_as_softmax_says(
    samples: dict[tuple[str, bool], Samples], kind: tuple[str, bool]
) -> None:
    found = samples[kind]
    assert by_token(*found.chances(FIRST)) < LIMIT
    assert by_place(*found.chances(FIRST)) < LIMIT
    assert by_place(*found.chances(LATER)) < LIMIT


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_temperature_would_be_noticed(
    samples: dict[tuple[str, bool], Samples], kind: tuple[str, bool]
) -> None:
    found = samples[kind]
    if not kind[1]:  # Of drafted ones there are fewer; their first tokens are decided by plain rows too.
        assert by_token(*found.chances(FIRST, OFF)) > LIMIT
        assert by_place(*found.chances(FIRST, OFF)) > LIMIT
    assert by_place(*found.chances(LATER, OFF)) > LIMIT


@pytest.mark.parametrize("kind", KINDS)
def test_later_tokens_were_drafted_where_they_should(
    samples: dict[tuple[str, bool], Samples], kind: tuple[str, bool]
) -> None:
    record = samples[kind].record
    num_later = len(record["texts"]) * (NUM_TOKENS - 1)
    if kind[1]:
        assert record["accepted"] > num_later / 4
        # Wrong ones too, so that both ways out of a verification are in the sample.
        assert record["drafted"] > record["accepted"]
    else:
        assert record["drafted"] == 0


def test_nothing_comes_from_beyond_top_p(samples: dict[tuple[str, bool], Samples]) -> None:
    for is_drafted in (False, True):
        chances, tokens = samples["truncated", is_drafted].chances(slice(None))
        assert np.take_along_axis(chances, tokens[:, None], -1).min() > 0
