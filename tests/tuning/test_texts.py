"""What a draft would have guessed, by one forward: the same as asking it place by place."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ssd.attention.inputs import PlainInput
from ssd.bench.bare import MISSED
from ssd.bench.cases import Case
from ssd.bench.engines import CaseEngines
from ssd.config import MAX_CHILDREN, EngineConfig
from ssd.runtime.loading import LoadedModel
from ssd.runtime.runner import forward
from ssd.sampling import SamplingParams, mix_seed
from ssd.tuning.texts import Guesses, Written, guesses_of

Load = Callable[[Path], LoadedModel]


def write(target: Path, temperature: float, count: int = 40) -> Written:
    config = EngineConfig(model=str(target), device="cpu", dtype="float32", deterministic=True)
    with CaseEngines(config, None, [Case(mode="ar", temperature=temperature)]) as engines:
        case = Case(mode="ar", temperature=temperature)
        (record,) = engines.run(case, ["Once upon a time"], max_tokens=count, seed=5)
        ids = engines.engine.requests.tokenizer("Once upon a time").input_ids
        return Written(ids, record.tokens, SamplingParams(temperature=temperature, seed=5), mix_seed(5, 0))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_model_guesses_its_own_text(tiny_llama: Path, load: Load, temperature: float) -> None:
    """Also at T > 0: draft and target know the same noise."""
    guesses = guesses_of(load(tiny_llama), [write(tiny_llama, temperature)])
    # What lies beyond the 256 likeliest tokens is not looked at, and noise may lift it.
    assert set(guesses.texts[0]) <= ({0} if temperature == 0 else {0, MISSED})
    assert guesses.acceptance > 0.9


def test_ranks_are_those_of_the_draft_s_own_logits(tiny_llama: Path, tiny_draft: str, load: Load) -> None:
    written, draft = write(tiny_llama, 0.0), load(Path(tiny_draft))
    guesses = guesses_of(draft, [written])
    assert 0.0 < guesses.acceptance < 1.0
    for place in (0, 7, 39):
        ids = [*written.prompt, *written.tokens[:place]]
        blocks = list(range(-(-len(ids) // draft.pool.shape.block_size)))
        logits = forward(draft.runner, [PlainInput(ids, 0, blocks, 1, generated=False)])[0]
        order = logits.argsort(descending=True).tolist()
        rank = order.index(written.tokens[place])
        assert guesses.texts[0][place] == (rank if rank < MAX_CHILDREN else MISSED)


def test_rates_by_hand() -> None:
    guesses = Guesses([[0, 0, 1, 0, MISSED, 0, 0, 0], [0, 2]])
    assert guesses.acceptance == pytest.approx(7 / 10)
    assert [guesses.coverage(count) for count in (0, 1, 2, 7)] == pytest.approx([0, 1 / 3, 2 / 3, 2 / 3])
    assert guesses.coverage(1.5) == pytest.approx(1 / 2)
    # 0 0 [1] | 0 [missed] | 0 0 [0] and 0 [2], with two guesses a round
    assert guesses.tokens_a_round(2) == pytest.approx(10 / 4)


def test_a_text_longer_than_the_draft_s_context_is_refused(tiny_llama: Path, load: Load) -> None:
    with pytest.raises(ValueError, match="fewer --max-tokens"):
        guesses_of(load(tiny_llama), [Written([1] * 500, [2] * 100, SamplingParams(), 0)])
