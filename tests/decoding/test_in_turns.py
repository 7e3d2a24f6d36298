"""Mode sd without a number: the controller of SSD decides how much is guessed, by a clock that tests turn."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd.attention.inputs import SequenceInput
from ssd.decoding.decoder import Decoder
from ssd.decoding.in_turns import HOPED_RATE, DraftInTurns
from ssd.decoding.rows import DecodeRow, DraftContext, Speculation
from ssd.draft.client.controller import Controller
from ssd.sampling import History, SamplingParams, SamplingRow
from tests.row_runner import RowRunner

ROOM = 8


class Turns(RowRunner):
    """A draft and a target whose forwards take seconds of our own; right or wrong as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, draft_seconds: float, num_sequences: int) -> None:
        self.now, self.draft_seconds, self.num_sequences = 0.0, draft_seconds, num_sequences
        self.has_read_texts = False
        self.num_right = ROOM
        self.num_drafted: list[int] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def room(self, context: DraftContext) -> int:
        return ROOM

    def propose(
        self, contexts: Sequence[DraftContext], lengths: Sequence[int] | None, states: object
    ) -> list[Speculation]:
        wanted = [ROOM] * len(contexts) if lengths is None else lengths
        self.now += self.draft_seconds * max(wanted)
        return [Speculation((7,) * length) for length in wanted]

    def forward(self, rows: Sequence[SequenceInput]) -> Tensor:
        self.now += 1.0 + 0.01 * sum(len(row.tokens) for row in rows)
        tokens = [7 if place < self.num_right else 6 for row in rows for place in range(row.num_logits)]
        return torch.nn.functional.one_hot(torch.tensor(tokens), 8).float()

    def run(self, decoder: Decoder, num_steps: int) -> None:
        sampling = SamplingRow(SamplingParams(temperature=0), 0, 1, [1], History([1], 1))
        contexts = [DraftContext(each, sampling) for each in range(self.num_sequences)]
        for _ in range(num_steps):
            speculations = decoder.proposer.propose(range(self.num_sequences), contexts.__getitem__, {})
            rows = [
                DecodeRow([1, *each.tokens], 0, [0], True, sampling, num_drafted=len(each.tokens))
                for each in speculations
            ]
            self.num_drafted.append(max(row.num_drafted for row in rows))
            decoder.launch(rows)
            decoder.proposer.settle(rows, decoder.collect(), decoder.times)


def adaptive(turns: Any) -> Decoder:
    return Decoder(turns, DraftInTurns(turns, Controller(guess_rate=HOPED_RATE)))


@pytest.mark.parametrize("num_sequences", [1, 4])
def test_a_useless_draft_is_hardly_ever_asked(monkeypatch: pytest.MonkeyPatch, num_sequences: int) -> None:
    """Sd drafted its whole lookahead for ever, while ssd sends a draft that is never right to rest."""
    turns = Turns(monkeypatch, draft_seconds=0.1, num_sequences=num_sequences)
    turns.num_right = 0
    turns.run(adaptive(turns), 400)
    assert any(turns.num_drafted[:10])
    assert sum(each > 0 for each in turns.num_drafted[100:]) < 40
    assert turns.now < 1.05 * 400 * (1 + 0.01 * num_sequences)


def test_a_good_and_cheap_draft_is_used_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch, draft_seconds=0.1, num_sequences=1)
    turns.run(adaptive(turns), 200)
    assert sum(each == ROOM for each in turns.num_drafted[100:]) > 80


def test_a_draft_as_slow_as_its_target_is_not_worth_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch, draft_seconds=1.0, num_sequences=1)
    turns.num_right = 1
    turns.run(adaptive(turns), 400)
    assert sum(each > 0 for each in turns.num_drafted[200:]) < 60


def test_a_draft_that_is_right_again_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch, draft_seconds=0.1, num_sequences=1)
    decoder = adaptive(turns)
    turns.num_right = 0
    turns.run(decoder, 100)
    turns.num_right = ROOM
    turns.run(decoder, 400)
    assert sum(turns.num_drafted[-100:]) > 500


def test_a_lookahead_that_was_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: Any = Turns(monkeypatch, draft_seconds=0.1, num_sequences=1)
    turns.num_right = 0
    turns.run(Decoder(turns, DraftInTurns(turns)), 100)
    assert turns.num_drafted == [ROOM] * 100
