"""Whatever is drafted, the tokens are those of the definition: y = argmax(z/T + g), one after the other."""

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ssd.attention.inputs import SequenceInput
from ssd.decoding.rows import DecodeRow, PromptScoring
from ssd.decoding.verification import accepted_places, decided_positions, verify
from ssd.sampling import History, SamplingParams, SamplingRow, sample
from tests.row_runner import RowRunner

VOCAB = 5


class TableModel(RowRunner):
    """Logits that depend on the whole prefix: a wrong prefix or a shifted row shows."""

    def __init__(self, prefix: list[int]) -> None:
        self.prefix = prefix

    def logits(self, tokens: list[int]) -> Tensor:
        drawn = random.Random(repr(tokens))
        # A few values only, so that ties are common.
        return torch.tensor([drawn.choice([-8.0, -1.0, 0.0, 0.5, 1.0]) for _ in range(VOCAB)])

    def forward(self, rows: Sequence[SequenceInput]) -> Tensor:
        wanted = [
            self.logits(self.prefix[: row.start] + list(row.tokens[:count]))
            for row in rows
            for count in range(len(row.tokens) - row.num_logits + 1, len(row.tokens) + 1)
        ]
        return torch.stack(wanted)


def sampling_row(tokens: list[int], num_prompt: int, params: SamplingParams, seed: int) -> SamplingRow:
    return SamplingRow(params, seed, len(tokens), tuple(tokens[:num_prompt]), History(tokens, num_prompt))


def definition(prompt: list[int], params: SamplingParams, seed: int, count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        logits = TableModel([]).logits(tokens).unsqueeze(0)
        tokens.append(sample(logits, [sampling_row(tokens, len(prompt), params, seed)])[0].token)
    return tokens[len(prompt) :]


PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, repetition_penalty=1.5, frequency_penalty=1.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=3, repetition_penalty=1.5),
    SamplingParams(temperature=1.3, min_p=0.1, frequency_penalty=1.0, presence_penalty=0.5),
    SamplingParams(temperature=1.0, top_p=0.8, logit_bias={1: 2.0}),
]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.data())
@settings(max_examples=200)
def test_acceptance_ends_at_the_first_token_not_foretold(decided: list[int], data: st.DataObject) -> None:
    drafted = data.draw(st.lists(st.integers(0, 2), min_size=len(decided) - 1, max_size=len(decided) - 1))
    kept = [decided[place] for place in accepted_places(decided, drafted)]
    assert kept == decided[: len(kept)]
    assert kept[:-1] == drafted[: len(kept) - 1]
    assert len(kept) == len(decided) or drafted[len(kept) - 1] != decided[len(kept) - 1]


def test_positions_follow_the_drafted_tokens() -> None:
    tokens = [4, 4, 2]
    row = DecodeRow([2, 1, 3], 2, [0], True, sampling_row(tokens, 2, PARAMS[1], 9), num_drafted=2)
    positions = decided_positions(row)
    assert [position.position for position in positions] == [3, 4, 5]
    assert [list(position.output) for position in positions] == [[2], [2, 1], [2, 1, 3]]


def test_prompt_scores_and_several_rows_do_not_mix() -> None:
    """A scored prompt, a silent chunk and a verification in one forward, each equal to itself alone."""
    prompt = [1, 2, 3, 0]
    scored = DecodeRow(
        prompt, 0, [0], False, sampling_row(prompt, 4, PARAMS[0], 1), scoring=PromptScoring([2, 3, 0], 2)
    )
    silent = DecodeRow([3, 3], 0, [1], False, None)
    drafted = DecodeRow([2, 4, 1], 0, [2], True, sampling_row([2], 1, PARAMS[1], 3), num_drafted=2)
    rows = [scored, silent, drafted]
    together = verify(TableModel([]), rows)
    assert together == [
        verify(TableModel([]), [row])[0] if row is not silent else together[1] for row in rows
    ]
    assert together[1].tokens == ()
    expected = [TableModel([]).logits(prompt[: i + 1]).log_softmax(-1)[prompt[i + 1]] for i in range(3)]
    assert [score.logprob for score in together[0].prompt_logprobs] == pytest.approx(
        [float(x) for x in expected]
    )
