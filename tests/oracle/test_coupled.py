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
from ssd.draft.client.proposals import Parents, depths_of, first_path, parents_of
from ssd.sampling import SamplingRow, pruned
from tests.oracle.coupled import FAR_APART, Batch, Case, num_differing_outcomes


def test_adversarial_schedules_over_noise_tables() -> None:
    with mock.patch.object(pruned, "_note_winners", wraps=pruned._note_winners) as among:
        batches = [Batch(number) for number in range(32)]
        assert sum(batch.num_differences() for batch in batches) == 0
    assert sum(batch.num_trees for batch in batches) > 500
    # Both of the sampler's ways were taken.
    assert any(len(call.args[1]) for call in among.call_args_list)


@pytest.mark.parametrize(("vocab", "stride"), [(3, 1), (4, 1), (3, FAR_APART)])
def test_every_speculation_at_every_place(vocab: int, stride: int) -> None:
    for number in range(4):
        num_differing, num_checked = num_differing_outcomes(Case(number, vocab, stride))
        shapes = [1, 1, 2, 6]
        """Of trees with so many nodes."""
        assert (num_differing, num_checked) == (0, 6 * sum(vocab**i * each for i, each in enumerate(shapes)))


def matches_anywhere(decided: Sequence[int], drafted: Sequence[int], parents: Parents) -> list[int]:
    """Counts right tokens after a wrong one."""
    above = [-1, *parents_of(parents, len(drafted))]
    return [0, *(node for node in range(1, len(decided)) if drafted[node - 1] == decided[above[node] + 1])]


def takes_the_drafted(decided: Sequence[int], drafted: Sequence[int], parents: Parents) -> list[int]:
    """Believes the draft."""
    return [0, *(node + 1 for node in first_path(range(len(drafted)), parents))]


def takes_a_cousin(decided: Sequence[int], drafted: Sequence[int], parents: Parents) -> list[int]:
    """Goes to whatever node of the next depth has the token."""
    depths, places, found = depths_of(parents, len(drafted)), [0], [0]
    while found:
        wanted, depth = decided[places[-1]], len(places)
        found = [i + 1 for i, each in enumerate(depths) if each == depth and drafted[i] == wanted]
        places += found[-1:]
    return places


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
        ("accepted_places", matches_anywhere),
        ("accepted_places", takes_the_drafted),
        ("accepted_places", takes_a_cousin),
        ("decided_positions", same_noise),
        ("decided_positions", same_history),
    ],
)
def test_faults_are_seen(monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[..., Any]) -> None:
    monkeypatch.setattr(verification, name, fault)
    assert sum(Batch(number).num_differences() for number in range(4)) > 0
