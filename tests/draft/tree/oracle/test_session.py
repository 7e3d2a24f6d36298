"""One session: what moves where, and what an outcome teaches."""

from collections.abc import Sequence
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.sampling.processors import edit_logits
from tests.draft.tree.oracle.session import Move, Session


def opening(prompt: Sequence[int] = (1, 2, 3, 4, 5), **sampling: object) -> Open:
    return Open(0, 1, pack_ints(prompt), len(prompt), 10_000, 4, Sampling(seed=0, **sampling))  # type: ignore[arg-type]


def opened() -> Session:
    """Five tokens, read; after the root come 10, 11, 12 (nodes 1, 2, 3)."""
    session = Session(opening(), max_len=100)
    session.num_computed = 5
    grow(session, 0, 10)
    return session


def grow(session: Session, node: int, first_token: int) -> None:
    raws = np.log(np.array([0.5, 0.25, 0.125], dtype=np.float32))
    session.grow(node, np.arange(first_token, first_token + 3, dtype=np.int32), raws, raws)
    session.check_integrity()


def test_the_path_moves_into_the_blocks_and_nothing_else_moves() -> None:
    session = opened()
    for node, token in ((2, 20), (1, 30), (6, 40), (5, 50), (4, 60)):  # places 0, 1, 2, 3, 4
        grow(session, node, token)
    # Below node 2 (token 11) lie 4, 5 and 6, grown last to first; node 1 is lost.
    assert session.advance(1, [11]) == Move([0], 5)
    session.check_integrity()
    assert (session.tokens[5:], session.num_computed, session.num_grown) == ([11], 6, 3)
    assert session.tree.tokens[:4] == [11, 20, 21, 22]
    assert session.tree.slots[1:4] == [4, 3, 2]
    grow(session, 1 + session.tree.slots[1:].index(-1), 70)
    assert 0 in session.tree.slots, "a place that is free again is taken first"


def test_a_whole_path_moves_in_the_order_of_the_text() -> None:
    session = opened()
    grow(session, 2, 15)
    grow(session, 1, 20)
    grow(session, 7, 30)
    assert session.advance(1, [10, 20]) == Move([1, 2], 5)
    assert (session.num_computed, session.is_root_read, session.num_grown) == (7, True, 0)


def test_without_free_blocks_the_text_is_read_again() -> None:
    session = opened()
    grow(session, 1, 20)
    assert session.advance(1, [10], has_room=False) is None
    session.check_integrity()
    assert (session.tokens[5:], session.num_computed, session.num_grown, session.tree.size) == ([10], 5, 0, 1)


def test_a_miss_keeps_the_part_of_the_path_that_was_right() -> None:
    session = opened()
    grow(session, 2, 20)
    grow(session, 1, 30)
    assert session.advance(1, [10, 99]) == Move([1], 5)
    session.check_integrity()
    assert (session.num_computed, session.is_root_read, session.tree.size) == (6, False, 1)


def test_an_ungrown_node_becomes_a_root_to_be_read() -> None:
    session = opened()
    assert session.advance(1, [11]) is None
    session.check_integrity()
    assert (session.num_computed, session.is_root_read, session.tree.root_id) == (5, False, 2)


def test_an_outcome_teaches_at_every_place_that_had_children() -> None:
    session = opened()
    grow(session, 2, 20)
    taken = [each.taken for each in session.observe([11, 22, 7, 7])]
    assert taken == [1, 2]
    assert [each.taken for each in session.observe([99, 20])] == [None]
    assert np.exp(session.observe([10])[0].raws).tolist() == [0.5, 0.25, 0.125]
    session.num_computed -= 1
    assert session.observe([11]) == []


def test_frames_tell_what_is_new_and_full_frames_everything() -> None:
    session = opened()
    first = session.frame()
    assert first is not None
    assert (first.number, first.n, first.root, first.length) == (0, 0, 0, 5)
    assert (len(first.ids), first.full) == (3, False)
    assert session.frame() is None
    grow(session, 2, 20)
    second = session.frame()
    assert second is not None
    assert (second.number, second.ids, second.parents) == (1, [4, 5, 6], [2, 2, 2])
    whole = session.full_frame()
    assert (whole.number, whole.full, whole.ids) == (2, True, [1, 2, 3, 4, 5, 6])
    session.advance(1, [11])
    whole = session.full_frame()
    assert (whole.n, whole.root, whole.length, whole.ids) == (1, 2, 6, [4, 5, 6])


def test_noise_that_the_draft_cannot_foretell_is_declined_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"'xorshift'.*supports philox, murmur3.*temperature of 0"):
        Session(opening(noise="xorshift", temperature=0.7), max_len=100)
    # Where nothing is drawn with it, it does not matter.
    Session(opening(noise="xorshift"), max_len=100)
    Session(opening(noise="xorshift", temperature=0.7, ratio=True), max_len=100)
    Session(opening(noise="philox", temperature=0.7), max_len=100)


def test_penalties_walk_a_prompt_once_however_many_nodes_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft counted the whole prompt again for every node."""
    unique = Mock(wraps=np.unique)
    monkeypatch.setattr(np, "unique", unique)
    session = Session(opening(prompt=range(3_000), repetition_penalty=1.3), max_len=10_000)
    session.num_computed = 3_000
    grow(session, 0, 10)
    for node in range(1, 40):
        edit_logits(torch.zeros(5_000), session.sampling_row(node))
        grow(session, node, 3 * node)
    assert sum(len(call.args[0]) for call in unique.call_args_list) < 2 * 3_000


def test_penalties_count_along_the_path_of_a_node() -> None:
    """What a node is penalised for: the prompt, what is decided, and its own ancestors only."""
    session = Session(opening(repetition_penalty=2.0, frequency_penalty=0.5), max_len=100)
    session.num_computed = 5
    grow(session, 0, 10)
    grow(session, 1, 10)  # Node 4 is another 10 behind the first
    grow(session, 2, 20)
    for node, path in ((4, [10, 10]), (7, [11, 20]), (0, [])):
        expected = [1.0] * 30
        for token in {1, 2, 3, 4, 5, *path}:
            expected[token] = 0.5 - 0.5 * path.count(token)
        assert edit_logits(torch.ones(30), session.sampling_row(node)).tolist() == expected
    session.advance(1, [11])
    assert edit_logits(torch.ones(30), session.sampling_row(0))[[10, 11]].tolist() == [1.0, 0.0]
