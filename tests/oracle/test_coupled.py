"""Coupled acceptance gives its definition with any noise under any schedule; and what is wrong shows.

The full form is `python -m tests.oracle.coupled --tables 100000`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from ssd.decoding import verification
from ssd.decoding.rows import DecodeRow
from ssd.sampling import SampledToken, SamplingRow, pruned
from tests.oracle.coupled import FAR_APART, Batch, Case, num_differing_outcomes


def test_adversarial_schedules_over_noise_tables() -> None:
    with mock.patch.object(pruned, "_note_winners", wraps=pruned._note_winners) as among:
        assert sum(Batch(number).num_differences() for number in range(32)) == 0
    # Both of the sampler's ways were taken.
    assert any(len(call.args[1]) for call in among.call_args_list)


@pytest.mark.parametrize(("vocab", "stride"), [(3, 1), (4, 1), (3, FAR_APART)])
def test_every_speculation_at_every_place(vocab: int, stride: int) -> None:
    for number in range(4):
        num_differing, num_checked = num_differing_outcomes(Case(number, vocab, stride))
        assert (num_differing, num_checked) == (0, 6 * sum(vocab**count for count in range(4)))


def matches_anywhere(decided: Sequence[SampledToken], drafted: Sequence[int]) -> tuple[SampledToken, ...]:
    """Counts right tokens after a wrong one."""
    right = sum(mine.token == token for mine, token in zip(decided, drafted, strict=False))
    return tuple(decided[: right + 1])


def takes_the_drafted(decided: Sequence[SampledToken], drafted: Sequence[int]) -> tuple[SampledToken, ...]:
    """Believes the draft."""
    return (*(SampledToken(token, None) for token in drafted), decided[len(drafted)])


def same_noise(row: DecodeRow) -> list[SamplingRow]:
    """Noise of the first position for all of them."""
    positions = verification_positions(row)
    return [replace(each, position=positions[0].position) for each in positions]


def same_history(row: DecodeRow) -> list[SamplingRow]:
    """Penalties that do not see drafted tokens."""
    positions = verification_positions(row)
    return [replace(each, output=positions[0].output) for each in positions]


verification_positions = verification.decided_positions


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("accept", matches_anywhere),
        ("accept", takes_the_drafted),
        ("decided_positions", same_noise),
        ("decided_positions", same_history),
    ],
)
def test_faults_are_seen(monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[..., Any]) -> None:
    monkeypatch.setattr(verification, name, fault)
    assert sum(Batch(number).num_differences() for number in range(4)) > 0
