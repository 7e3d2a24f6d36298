"""What a draft would have guessed, by one forward: the same as asking it place by place."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ssd.attention.rows import PlainRow
from ssd.bench.cases import Case
from ssd.bench.engines import CaseEngines
from ssd.config import EngineConfig
from ssd.planning.text import MISSED
from ssd.runtime.loading import LoadedModel
from ssd.runtime.runner import forward
from ssd.sampling import SamplingParams, mix_seed
from ssd.tuning.texts import Written, texts_of

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
    (text,) = texts_of(load(tiny_llama), [write(tiny_llama, temperature)])
    # What lies beyond the 256 likeliest tokens is not looked at, and noise may lift it.
    assert set(text.ranks) <= ({0} if temperature == 0 else {0, MISSED})
    assert text.acceptance > 0.9
    assert text.chances[:, 0].mean() > 0.5


def test_ranks_are_those_of_the_draft_s_own_logits(tiny_llama: Path, tiny_draft: Path, load: Load) -> None:
    written, draft = write(tiny_llama, 0.0), load(tiny_draft)
    (text,) = texts_of(draft, [written])
    assert 0.0 < text.acceptance < 1.0
    for place in (0, 7, 39):
        ids = [*written.prompt, *written.tokens[:place]]
        blocks = list(range(-(-len(ids) // draft.pool.shape.block_size)))
        logits = forward(draft.runner, [PlainRow(ids, 0, blocks, 1, generated=False)])[0]
        order = logits.argsort(descending=True).tolist()
        rank = order.index(written.tokens[place])
        assert text.ranks[place] == (rank if rank < text.chances.shape[1] else MISSED)


def test_runs_count_what_the_earlier_text_foretells(tiny_llama: Path, load: Load) -> None:
    tokens = [5, 6, 7, 8, 9, 5, 6, 7, 8, 11, 12]
    (text,) = texts_of(load(tiny_llama), [Written([3, 4], tokens, SamplingParams(temperature=0.0), 0)])
    # After the second "5 6" stood before: 7 and 8 follow as they did, 9 does not.
    assert text.runs.tolist() == [0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0]


def test_a_text_longer_than_the_draft_s_context_is_refused(tiny_llama: Path, load: Load) -> None:
    with pytest.raises(ValueError, match="fewer --max-tokens"):
        texts_of(load(tiny_llama), [Written([1] * 500, [2] * 100, SamplingParams(), 0)])
