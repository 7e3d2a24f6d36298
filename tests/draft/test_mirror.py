"""The mirror's rules one by one: what it grafts, holds, drops and asks for again."""

import numpy as np
import pytest

from ssd.draft import mirror as mirror_module
from ssd.draft.messages import Nodes, pack_floats, pack_ints
from ssd.draft.mirror import Knowledge, Mirror
from ssd.draft.tree import UNNAMED

Group = tuple[int, int, list[int]]
"""A parent's id, the first child's id, and the children's tokens."""


def nodes(number: int, n: int, root: int, *groups: Group, full: bool = False, epoch: int = 1) -> Nodes:
    ids, parents, tokens, logprobs = list[int](), list[int](), list[int](), list[float]()
    for parent, first, followers in groups:
        ids += range(first, first + len(followers))
        parents += [parent] * len(followers)
        tokens += followers
        logprobs += np.log(0.5 ** np.arange(1, len(followers) + 1)).tolist()
    return Nodes(
        0,
        epoch,
        number,
        n,
        root,
        pack_ints(ids),
        pack_ints(parents),
        pack_ints(tokens),
        pack_floats(logprobs),
        full,
    )


def fresh_mirror() -> Mirror:
    """Root 0; its children 1, 2, 3 are tokens 11, 12, 13; below 1 lie 4 and 5, tokens 14 and 15."""
    mirror = Mirror(1, 9)
    mirror.take(nodes(0, 0, 0, (0, 1, [11, 12, 13])))
    mirror.take(nodes(1, 0, 0, (1, 4, [14, 15])))
    return checked(mirror)


def checked(mirror: Mirror) -> Mirror:
    mirror.tree.check_integrity()
    return mirror


def test_speculates_along_the_likeliest_path_with_falling_chances() -> None:
    path = fresh_mirror().speculation(5)
    assert path.tokens == (11, 14)
    assert path.chances == pytest.approx((0.5, 0.25))
    assert fresh_mirror().speculation(1).tokens == (11,)


def test_knowledge_of_an_outcome() -> None:
    assert fresh_mirror().advance([11]) is Knowledge.HIT
    assert fresh_mirror().advance([12]) is Knowledge.LATE
    assert fresh_mirror().advance([11, 15]) is Knowledge.LATE
    assert fresh_mirror().advance([20]) is Knowledge.UNKNOWN
    assert fresh_mirror().advance([11, 20]) is Knowledge.UNKNOWN
    assert Mirror(1, 9).advance([11]) is Knowledge.UNHEARD


def test_chances_count_from_the_new_root() -> None:
    mirror = fresh_mirror()
    mirror.advance([11])
    path = mirror.speculation(5)
    assert path.tokens == (14,)
    assert path.chances == pytest.approx((0.5,))


def test_another_epoch_means_nothing() -> None:
    mirror = Mirror(2, 9)
    mirror.take(nodes(0, 0, 0, (0, 1, [11]), epoch=1))
    mirror.take(nodes(0, 0, 0, (0, 1, [11]), epoch=3))
    assert (mirror.num_frames, mirror.tree.size, mirror.is_torn) == (0, 1, False)


def test_a_frame_that_came_before_is_dropped() -> None:
    mirror = fresh_mirror()
    mirror.take(nodes(1, 0, 0, (2, 6, [16])))
    assert (mirror.num_frames, mirror.tree.size, mirror.is_torn) == (2, 6, False)


def test_a_frame_from_the_future_is_dropped() -> None:
    mirror = fresh_mirror()
    mirror.take(nodes(2, 1, 1, (2, 6, [16])))
    assert (mirror.num_frames, mirror.tree.size, mirror.is_torn) == (2, 6, False)


def test_a_gap_tears_and_the_whole_tree_mends() -> None:
    mirror = fresh_mirror()
    mirror.take(nodes(3, 0, 0, (2, 8, [16])))
    assert mirror.is_torn
    mirror.take(nodes(2, 0, 0, (1, 6, [16])))
    assert mirror.is_torn
    assert mirror.num_frames == 2
    mirror.advance([11])
    mirror.advance([30])
    mirror.take(nodes(4, 1, 1, (1, 4, [14, 30]), (5, 9, [17]), full=True))
    assert (mirror.is_torn, mirror.num_frames) == (False, 5)
    assert checked(mirror).tree.root_id == 5
    assert mirror.speculation(9).tokens == (17,)
    mirror.take(nodes(5, 2, 5, (9, 10, [18])))
    assert checked(mirror).speculation(9).tokens == (17, 18)


def test_children_of_a_lost_branch_are_dropped() -> None:
    mirror = fresh_mirror()
    mirror.advance([11, 20])
    mirror.take(nodes(2, 0, 0, (2, 6, [16]), (4, 7, [17])))
    assert (checked(mirror).tree.size, mirror.is_torn) == (1, False)


def test_a_late_frame_names_the_root() -> None:
    mirror = fresh_mirror()
    assert mirror.advance([11, 14, 21]) is Knowledge.UNKNOWN
    mirror.take(nodes(2, 0, 0, (4, 6, [20, 21]), (7, 8, [22])))
    assert checked(mirror).tree.root_id == 7
    assert mirror.speculation(9).tokens == (22,)


def test_a_late_frame_names_the_root_several_tokens_on() -> None:
    mirror = fresh_mirror()
    assert mirror.advance([12, 21]) is Knowledge.UNKNOWN
    assert mirror.advance([22]) is Knowledge.UNKNOWN
    mirror.take(nodes(2, 0, 0, (2, 6, [20, 21])))
    mirror.take(nodes(3, 0, 0, (7, 8, [22, 23]), (8, 10, [24])))
    assert checked(mirror).tree.root_id == 8
    assert mirror.speculation(9).tokens == (24,)


def test_a_frame_before_the_first_outcome_may_come_after_it() -> None:
    mirror = Mirror(1, 9)
    assert mirror.advance([11, 14]) is Knowledge.UNHEARD
    mirror.take(nodes(0, 0, 0, (0, 1, [11, 12]), (1, 3, [14])))
    assert checked(mirror).tree.root_id == 3


def test_a_draft_that_lags_behind_a_miss_is_still_understood() -> None:
    """Two outcomes in a row are unknown; between them the draft has begun again, from a root of its own."""
    mirror = fresh_mirror()
    assert mirror.advance([20]) is Knowledge.UNKNOWN
    assert mirror.advance([31]) is Knowledge.UNKNOWN
    mirror.take(nodes(2, 1, 6, (6, 7, [30, 31])))
    mirror.take(nodes(3, 1, 6, (8, 9, [32])))
    assert checked(mirror).tree.root_id == 8
    assert mirror.speculation(9).tokens == (32,)
    mirror.take(nodes(4, 2, 8, (9, 10, [33])))
    assert checked(mirror).speculation(9).tokens == (32, 33)


def test_an_older_root_does_not_replace_a_nearer_anchor() -> None:
    mirror = fresh_mirror()
    mirror.advance([11, 14, 21])
    mirror.advance([22])
    mirror.take(nodes(2, 0, 0, (4, 6, [21])))
    mirror.take(nodes(3, 0, 0, (6, 7, [22, 23])))
    assert checked(mirror).tree.root_id == 7


def test_a_root_that_has_its_name_keeps_it() -> None:
    """Hostile: once the root is named, the children of where it hung are no business of anyone."""
    mirror = fresh_mirror()
    mirror.advance([20])
    mirror.take(nodes(2, 1, 6))
    mirror.take(nodes(3, 1, 6, (0, 7, [20])))
    assert checked(mirror).tree.root_id == 6


@pytest.mark.parametrize(
    "frame",
    [
        nodes(2, 0, 2),
        nodes(2, 0, 0, (2, 5, [16])),
        nodes(2, 0, 0, (1, 6, [16])),
        nodes(2, 0, 0, (2, 6, [16]), (3, 7, [16]), (2, 8, [17])),
        nodes(2, 0, 0, (2, 6, [16, 16])),
    ],
    ids=["another root", "an id twice", "children twice", "children in two parts", "a token twice"],
)
def test_nonsense_tears(frame: Nodes) -> None:
    mirror = fresh_mirror()
    mirror.take(frame)
    assert checked(mirror).is_torn
    assert mirror.num_frames == 3


def test_a_tree_larger_than_any_honest_one_tears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "MAX_ALIVE", 20)
    monkeypatch.setattr(mirror_module, "_COMPACT_FROM", 10)
    mirror, node_id = Mirror(1, 9), 1
    for number in range(40):
        mirror.take(nodes(number, 0, 0, (max(0, node_id - 1), node_id, [1, 2])))
        node_id += 2
    assert checked(mirror).is_torn
    assert mirror.tree.size < 30


def test_lost_branches_are_cleared_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "_COMPACT_FROM", 10)
    mirror, root, node_id = Mirror(1, 9), 0, 1
    for number in range(60):
        mirror.take(nodes(number, number, root, (root, node_id, [1, 2, 3])))
        mirror.advance([1])
        root, node_id = node_id, node_id + 3
        assert not checked(mirror).is_torn
        assert mirror.tree.size <= 14
    assert mirror.tree.root_id == root != UNNAMED
