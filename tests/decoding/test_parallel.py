"""What a speculation shows the controller, and who waits for the draft."""

from typing import Any

import numpy as np

from ssd.decoding.decoder import DraftContext
from ssd.decoding.parallel import ParallelDecoder, _chances, _speculation
from ssd.draft.client import LineStats
from ssd.draft.mirror import Knowledge, Path
from ssd.sampling import History, SamplingParams, SamplingRow
from ssd.sampling.ratio import DraftDistribution, Proposal


def proposals(*tokens: int) -> tuple[Proposal, ...]:
    q = DraftDistribution(np.array([1, 2, 3], np.int32), np.array([0.5, 0.3, 0.2], np.float32))
    return tuple(Proposal(token, q) for token in tokens)


def test_a_guess_is_cut_by_its_own_chance() -> None:
    assert tuple(_chances(Path((1, 2, 3), (0.9, 0.4, 0.1)))) == (0.9, 0.4, 0.1)


def test_a_drawn_token_is_cut_by_its_parents_chance() -> None:
    """Whether it is checked must not depend on which token it is."""
    assert tuple(_chances(Path((1, 2, 3), (0.9, 0.4, 0.1), proposals(1, 2, 3)))) == (1.0, 0.9, 0.4)


def test_tokens_and_their_distributions_are_cut_alike() -> None:
    speculation = _speculation(Path((1, 2, 3), (0.9, 0.4, 0.1), proposals(1, 2, 3)), 2)
    assert speculation.tokens == (1, 2)
    assert [each.token for each in speculation.proposals or ()] == [1, 2]


class Client:
    """A draft that knows what it is told to know, from the first wait on or before."""

    def __init__(self, known: dict[int, Path], later: dict[int, Path]) -> None:
        self.known, self.later = known, later
        self.stats = LineStats(step_seconds=0.01)
        self.num_waits = 0
        self.now = 0.0

    def follow(self, *_: object) -> None:
        pass

    def speculation(self, seq_id: int, _limit: int) -> Path:
        return self.known.get(seq_id, Path())

    def wait(self, _seq_ids: object, _timeout: float) -> None:
        self.num_waits += 1
        self.now += 0.02
        self.known = {**self.known, **self.later}


def decoder(known: dict[int, Path], later: dict[int, Path]) -> tuple[ParallelDecoder, Client]:
    client: Any = Client(known, later)
    target: Any = None
    found = ParallelDecoder(target, client, lookahead=4, backup="jit", clock=lambda: client.now)
    found._knowledge = dict.fromkeys(range(2), Knowledge.UNKNOWN)
    for _ in range(5):
        found.controller.times.note(1, 1.0)
    return found, client


def contexts() -> list[DraftContext]:
    row = SamplingRow(SamplingParams(temperature=0), 0, 3, (1, 2, 3), History([1, 2, 3], 3))
    return [DraftContext(seq_id, row) for seq_id in range(2)]


LIKELY, UNLIKELY = Path((7,), (0.9,)), Path((7,), (0.01,))


def test_rows_that_hit_do_not_wait_for_rows_that_miss() -> None:
    parallel, client = decoder({0: LIKELY}, {1: LIKELY})
    assert [each.tokens for each in parallel.propose(contexts())] == [(7,), ()]
    assert (client.num_waits, parallel._num_ready) == (0, 1)


def test_where_all_miss_one_step_is_waited_for() -> None:
    parallel, client = decoder({}, {1: LIKELY})
    assert [each.tokens for each in parallel.propose(contexts())] == [(), (7,)]
    assert (client.num_waits, parallel._num_ready) == (1, 0)


def test_waiting_ends_where_what_comes_is_not_worth_verifying() -> None:
    parallel, client = decoder({}, {1: UNLIKELY})
    for _ in range(150):
        assert not any(each.tokens for each in parallel.propose(contexts()))
        client.known = {}
    assert client.num_waits < 110
    before = client.num_waits
    parallel.propose(contexts())
    assert client.num_waits == before
