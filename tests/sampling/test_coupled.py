"""The coupled decision as tensors: both forms by its definition, acceptance, and what it costs in calls."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ssd.sampling import (
    NOTHING,
    Draws,
    History,
    SamplingParams,
    SamplingRow,
    Truncation,
    count_accepted,
    coupled,
    decide_tokens,
    draws_of,
    emitted_tokens,
    sample,
    seed_of,
    seed_tensor,
)
from ssd.sampling.pruned import decide_pruned
from ssd.sampling.ragged import BatchedScores
from ssd.sampling.select import grouped
from ssd.sampling.truncation import ragged_floors, whole_floors
from ssd.sampling.whole import decide_whole
from tests.sampling.noise import gumbel_noise
from tests.sampling.per_row import floor_of_row, token_of_row

TEMPERATURES = st.sampled_from([0.0, 0.3, 0.8, 1.0, 7.0])
PARAMS: st.SearchStrategy[SamplingParams] = st.builds(
    SamplingParams,
    temperature=TEMPERATURES,
    top_k=st.sampled_from([0, 0, 1, 5, 40, 3000]),
    top_p=st.sampled_from([1.0, 1.0, 0.3, 0.9, 0.9999]),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 1e-9]),
)
KINDS = ("flat", "sure", "steps", "masked", "forbidden")


def make_logits(kind: str, num_rows: int, vocab: int, seed: int) -> Tensor:
    logits = torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed))
    if kind == "sure":
        logits *= 4
        logits[:, :: vocab // 3 + 1] += 15
    elif kind == "steps":
        # bfloat16 at this size has steps of 0.125: ties everywhere.
        logits = (logits * 2 + 20).bfloat16()
    elif kind == "masked":
        logits[:, 3 + seed % 5 :] = -math.inf
    elif kind == "forbidden":
        logits[::2] = -math.inf
    return logits


def make_draws(params: list[SamplingParams], seed: int) -> Draws:
    rows = [
        SamplingRow(each, (seed + i) * 0x9E3779B97F4A7C15 % 2**64, 7 * i + seed, (), History([]))
        for i, each in enumerate(params)
    ]
    return draws_of(rows, "cpu")


@settings(deadline=None, max_examples=150)
@given(
    st.lists(PARAMS, min_size=1, max_size=6),
    st.sampled_from(KINDS),
    st.sampled_from([1, 5, 64, 1000, 4097]),
    st.integers(0, 50),
)
def test_both_forms_decide_what_a_row_decides_by_itself(
    params: list[SamplingParams], kind: str, vocab: int, seed: int
) -> None:
    logits, draws = make_logits(kind, len(params), vocab, seed), make_draws(params, seed)
    before = logits.clone()
    expected = [
        token_of_row(logits[i], each, int(draws.seeds[i]), int(draws.positions[i]))
        for i, each in enumerate(params)
    ]
    assert decide_whole(logits, draws).tolist() == expected
    assert decide_pruned(logits, draws).tolist() == expected
    assert torch.equal(logits, before), "the logits belong to the caller"


@settings(deadline=None, max_examples=200)
@given(
    st.lists(PARAMS, min_size=1, max_size=6),
    st.sampled_from(KINDS),
    st.sampled_from([1, 70, 1000, 5000]),
    st.integers(0, 50),
)
def test_both_forms_of_truncation_keep_what_a_row_keeps_by_itself(
    params: list[SamplingParams], kind: str, vocab: int, seed: int
) -> None:
    scores = make_logits(kind, len(params), vocab, seed).float()
    truncation = Truncation.of(params)
    if truncation is None:
        return
    groups = grouped(scores)
    rows = BatchedScores(groups, groups.amax(-1), np.arange(len(params)), np.ones(len(params), np.float32))
    whole, ragged = whole_floors(scores, truncation).tolist(), ragged_floors(rows, truncation).tolist()
    for i, each in enumerate(params):
        kept = scores[i] >= floor_of_row(scores[i], each)
        for floor in (whole[i], ragged[i]):
            assert torch.equal(scores[i] >= floor, kept)


def test_wide_rows_of_a_real_size() -> None:
    params = [
        SamplingParams(),
        SamplingParams(top_p=0.9),
        SamplingParams(temperature=0.4),
        SamplingParams(top_k=9),
    ]
    for kind in ("flat", "sure", "steps"):
        logits, draws = make_logits(kind, len(params), 151_936, 3), make_draws(params, 5)
        assert torch.equal(decide_pruned(logits, draws), decide_whole(logits, draws))


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations, and those that make the host wait for a value."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_calls, self.reads = 0, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.num_calls += 1
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        by_flags = any(each is not None and each.dtype == torch.bool for each in indices)
        if name in self.READS or by_flags:
            self.reads.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("changes", [{}, {"top_p": 0.9, "temperature": 0.8}, {"temperature": 0.0}])
@pytest.mark.parametrize("form", [decide_whole, decide_pruned])
def test_nothing_is_read_and_calls_do_not_grow_with_rows(form: Any, changes: dict[str, Any]) -> None:
    for num_rows in (2, 16, 64):
        logits = make_logits("sure", num_rows, 2048, 1)
        draws = make_draws([SamplingParams(**changes)] * num_rows, 3)
        with Calls() as calls:
            form(logits, draws)
        assert calls.reads == []
        # Which steps are taken depends on values, and what is too much for a cache goes in pieces, each with
        # Philox's rounds, which torch does where it is watched. Row by row it was a hundred for each.
        assert calls.num_calls < 500


def test_the_count_can_fail() -> None:
    with Calls() as calls:
        values = torch.arange(3.0)
        values[values > 1].sum().item()
    assert calls.reads == ["index", "_local_scalar_dense"]


def test_the_whole_form_needs_no_values_at_all() -> None:
    """On a device without memory any look at a value raises."""
    params = [SamplingParams(top_p=0.9, top_k=4, min_p=0.01), SamplingParams(temperature=0.0)]
    draws = make_draws(params, 1)
    assert draws.truncation is not None
    nowhere = Truncation(*(getattr(draws.truncation, name).to("meta") for name in Truncation.__slots__))
    there = Draws(draws.seeds.to("meta"), draws.positions.to("meta"), draws.temperatures.to("meta"), nowhere)
    tokens = decide_tokens(torch.empty(2, 3000, device="meta"), there)
    starts = torch.zeros(1, dtype=torch.int64, device="meta")
    accepted = count_accepted(tokens, tokens, starts)
    assert emitted_tokens(tokens, accepted, starts, 3).shape == (1, 3)


def test_an_engine_step_reads_once() -> None:
    """Of 16 rows, T = 0.8, top_p = 0.9, with penalties too: one list of tokens."""
    for penalty in (1.0, 1.2):
        params = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=penalty)
        rows = [SamplingRow(params, i, 50 + i, (1, 2), History([3, 4])) for i in range(16)]
        logits = make_logits("sure", 16, 2048, 1)
        with Calls() as calls:
            sample(logits, rows)
        assert calls.reads == []  # tokens leave through a list, which is no operation
        assert calls.num_calls < 400


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=5), st.data())
@settings(max_examples=200, deadline=None)
def test_accepted_are_the_first_that_were_foretold(guesses: list[list[int]], data: st.DataObject) -> None:
    drafted = [token for guess in guesses for token in (*guess, NOTHING)]
    tokens = data.draw(st.lists(st.integers(0, 2), min_size=len(drafted), max_size=len(drafted)))
    starts = np.cumsum([0] + [len(guess) + 1 for guess in guesses])[:-1]
    decided, first = torch.tensor(tokens), torch.from_numpy(starts)
    accepted = count_accepted(decided, torch.tensor(drafted), first)
    emitted = emitted_tokens(decided, accepted, first, 5).tolist()
    for start, guess, count, gained in zip(starts, guesses, accepted.tolist(), emitted, strict=True):
        own = tokens[start : start + len(guess) + 1]
        assert own[:count] == guess[:count]
        assert count == len(guess) or own[count] != guess[count]
        assert gained == own[: count + 1] + [NOTHING] * (4 - count)


def test_rows_without_one_to_spare_stay_apart() -> None:
    """Where a sequence has no row after its last drafted token, the next one's do not count for it."""
    tokens, starts = torch.tensor([1, 1, 1, 1]), torch.tensor([0, 2, 4])
    assert count_accepted(tokens, tokens, starts).tolist() == [2, 2, 0]


def test_seeds_of_requests_are_stable_and_apart() -> None:
    # Written down: a seed that changed would change the answers of whoever repeats an id.
    assert seed_of("cmpl-1", "salt") == seed_of("cmpl-1", "salt")
    seeds = {seed_of(f"r{i}", salt) for i in range(2000) for salt in ("a", "b")}
    assert len(seeds) == 4000
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert max(seeds) > 2**63
    assert seed_tensor([2**64 - 1, 0, -1]).tolist() == [-1, 0, -1]


def test_high_halves_of_seeds_and_late_positions_count() -> None:
    seeds, positions = [5, 5 + 2**32, 2**63 + 5], [2**32 - 1, 2**31, 3]
    draws = Draws(seed_tensor(seeds), torch.tensor(positions), torch.ones(3))
    logits = torch.randn(3, 3000, generator=torch.Generator().manual_seed(0))
    expected = (gumbel_noise(seeds, positions, 3000) + logits).argmax(1)
    assert torch.equal(decide_whole(logits, draws), expected)
    assert torch.equal(decide_pruned(logits, draws), expected)


def test_many_rows_are_decided_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory is bounded where all scores are held at once."""
    logits = make_logits("flat", 7, 300, 1)
    draws = make_draws([SamplingParams(temperature=0.8, top_p=0.9)] * 7, 1)
    expected = decide_tokens(logits, draws)
    monkeypatch.setattr(coupled, "_MOST_SCORES", 700)
    assert decide_tokens(logits, draws).tolist() == expected.tolist()


def test_wrong_shapes_are_refused() -> None:
    draws = make_draws([SamplingParams()], 1)
    with pytest.raises(ValueError, match=r"shape \(2, 5\) for 1 rows"):
        decide_tokens(torch.zeros(2, 5), draws)
