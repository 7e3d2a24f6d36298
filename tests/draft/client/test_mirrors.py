"""The mirrors' rules one by one: what it grafts, holds, drops and asks for again."""

import random

import numpy as np
import pytest

from ssd.draft.client import mirrors as mirrors_module
from ssd.draft.client.mirrors import UNNAMED, Knowledge, Mirrors
from ssd.draft.protocol.messages import Nodes, TreePart
from tests.draft.client.one_mirror import ROW, advanced
from tests.draft.client.one_mirror import OneMirror as Mirror

Group = tuple[int, int, list[int]]
"""A parent's id, the first child's id, and the children's tokens."""


def nodes(number: int, n: int, root: int, *groups: Group, full: bool = False, epoch: int = 1) -> TreePart:
    ids, parents, tokens, logprobs = list[int](), list[int](), list[int](), list[float]()
    for parent, first, followers in groups:
        ids += range(first, first + len(followers))
        parents += [parent] * len(followers)
        tokens += followers
        logprobs += np.log(0.5 ** np.arange(1, len(followers) + 1)).tolist()
    return TreePart(ROW, epoch, number, n, root, 0, ids, parents, tokens, logprobs, full)


def fresh_mirror() -> Mirror:
    """Root 0; its children 1, 2, 3 are tokens 11, 12, 13; below 1 lie 4 and 5, tokens 14 and 15."""
    mirror = Mirror(1)
    mirror.take(nodes(0, 0, 0, (0, 1, [11, 12, 13])))
    mirror.take(nodes(1, 0, 0, (1, 4, [14, 15])))
    return checked(mirror)


def checked(mirror: Mirror) -> Mirror:
    mirror.check()
    return mirror


def test_speculates_along_the_likeliest_path_with_falling_chances() -> None:
    tokens, chances = fresh_mirror().speculation(5)
    assert tokens == [11, 14]
    assert chances == pytest.approx([0.5, 0.25])
    assert fresh_mirror().speculation(1)[0] == [11]


def test_knowledge_of_an_outcome() -> None:
    assert fresh_mirror().advance([11]) is Knowledge.HIT
    assert fresh_mirror().advance([12]) is Knowledge.LATE
    assert fresh_mirror().advance([11, 15]) is Knowledge.LATE
    assert fresh_mirror().advance([20]) is Knowledge.UNKNOWN
    assert fresh_mirror().advance([11, 20]) is Knowledge.UNKNOWN
    assert fresh_mirror().advance([12, 20]) is Knowledge.LATE, "what follows 12 was not said yet"
    assert Mirror(1).advance([11]) is Knowledge.UNHEARD


def test_chances_count_from_the_new_root() -> None:
    mirror = fresh_mirror()
    mirror.advance([11])
    tokens, chances = mirror.speculation(5)
    assert tokens == [14]
    assert chances == pytest.approx([0.5])


def test_a_gap_tears_and_the_whole_tree_mends() -> None:
    mirror = fresh_mirror()
    mirror.take(nodes(3, 0, 0, (2, 8, [16])))
    assert mirror.is_out_of_sync
    mirror.take(nodes(2, 0, 0, (1, 6, [16])))
    assert mirror.is_out_of_sync
    assert mirror.num_frames == 2
    mirror.advance([11])
    mirror.advance([30])
    mirror.take(nodes(4, 1, 1, (1, 4, [14, 30]), (5, 9, [17]), full=True))
    assert (mirror.is_out_of_sync, mirror.num_frames) == (False, 5)
    assert checked(mirror).root_id == 5
    assert mirror.speculation(9)[0] == [17]
    mirror.take(nodes(5, 2, 5, (9, 10, [18])))
    assert checked(mirror).speculation(9)[0] == [17, 18]


def test_a_late_frame_names_the_root_several_tokens_on() -> None:
    mirror = fresh_mirror()
    assert mirror.advance([12, 21]) is Knowledge.LATE
    assert mirror.advance([22]) is Knowledge.LATE
    mirror.take(nodes(2, 0, 0, (2, 6, [20, 21])))
    mirror.take(nodes(3, 0, 0, (7, 8, [22, 23]), (8, 10, [24])))
    assert checked(mirror).root_id == 8
    assert mirror.speculation(9)[0] == [24]


def test_a_draft_that_lags_behind_a_miss_is_still_understood() -> None:
    """Two outcomes in a row; between them the draft has begun again, from a root of its own."""
    mirror = fresh_mirror()
    assert mirror.advance([20]) is Knowledge.UNKNOWN
    assert mirror.advance([31]) is Knowledge.LATE, "it has not said what may follow 20"
    mirror.take(nodes(2, 1, 6, (6, 7, [30, 31])))
    mirror.take(nodes(3, 1, 6, (8, 9, [32])))
    assert checked(mirror).root_id == 8
    assert mirror.speculation(9)[0] == [32]
    mirror.take(nodes(4, 2, 8, (9, 10, [33])))
    assert checked(mirror).speculation(9)[0] == [32, 33]


def test_an_older_root_does_not_replace_a_nearer_anchor() -> None:
    mirror = fresh_mirror()
    mirror.advance([11, 14, 21])
    mirror.advance([22])
    mirror.take(nodes(2, 0, 0, (4, 6, [21])))
    mirror.take(nodes(3, 0, 0, (6, 7, [22, 23])))
    assert checked(mirror).root_id == 7


def test_a_root_that_has_its_name_keeps_it() -> None:
    """Hostile: once the root is named, the children of where it hung are no business of anyone."""
    mirror = fresh_mirror()
    mirror.advance([20])
    mirror.take(nodes(2, 1, 6))
    mirror.take(nodes(3, 1, 6, (0, 7, [20])))
    assert checked(mirror).root_id == 6


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
def test_nonsense_tears(frame: TreePart) -> None:
    mirror = fresh_mirror()
    mirror.take(frame)
    assert checked(mirror).is_out_of_sync
    assert mirror.num_frames == 3


def test_what_is_written_over_is_gone_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """More nodes than the table has places: a draft that sends so many loses guesses, and no more."""
    monkeypatch.setattr(mirrors_module, "SLOTS", 16)
    mirror, node_id = Mirror(1), 1
    for number in range(40):
        mirror.take(nodes(number, 0, 0, (max(0, node_id - 1), node_id, [1, 2])))
        node_id += 2
        assert len(checked(mirror).content) <= 16
    assert mirror.num_frames == 40
    mirror.advance([5])
    mirror.take(nodes(40, 1, node_id, (node_id, node_id + 1, [7])))
    assert checked(mirror).speculation(9)[0] == [7]


def test_a_long_text_is_followed_in_a_small_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors_module, "SLOTS", 16)
    mirror, root, node_id = Mirror(1), 0, 1
    for number in range(60):
        mirror.take(nodes(number, number, root, (root, node_id, [1, 2, 3])))
        assert mirror.advance([1]) is Knowledge.LATE
        root, node_id = node_id, node_id + 3
        assert not checked(mirror).is_out_of_sync
        assert mirror.root_id == root != UNNAMED


def test_rows_of_one_message_do_not_touch_each_other() -> None:
    """One is torn, one talks nonsense, one is of another epoch, one is unknown: the others are taken."""
    table = Mirrors()
    for row in range(4):
        table.open(row, row + 1, length=1)

    def part(row: int, number: int = 0, tokens: list[int] | None = None, epoch: int = 0) -> TreePart:
        children = tokens or [11 + row, 30]
        logprobs = [-0.5] * len(children)
        ids = range(1, 1 + len(children))
        parents = [0] * len(children)
        return TreePart(row, epoch or row + 1, number, 0, 0, 1, ids, parents, children, logprobs)

    table.take(Nodes.of([part(0), part(1, number=1), part(9), part(2, tokens=[5, 5]), part(3)]))
    table.check_integrity()
    assert table.is_out_of_sync[:4].tolist() == [False, True, True, False]
    assert [table.path(row, 2)[0] for row in range(4)] == [[11], [], [], [14]]
    known = advanced(table, range(4), [[30], [1], [1, 1], [2]])
    assert known == [Knowledge.LATE, Knowledge.UNHEARD, Knowledge.UNHEARD, Knowledge.UNKNOWN]
    table.take(Nodes.of([part(0, number=1, epoch=7)]))
    assert table.num_frames[0] == 1


def test_a_node_that_was_written_over_ends_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors_module, "SLOTS", 8)
    mirror = Mirror(1)
    mirror.take(nodes(0, 0, 0, (0, 1, [11]), (1, 2, [12])))
    assert mirror.speculation(5)[0] == [11, 12]
    mirror.take(nodes(1, 0, 0, (1000, 1010, [7])))  # 1010 lies where 2 lay.
    assert checked(mirror).speculation(5)[0] == [11]


def whole_tree(mirrors: Mirrors, seq: int, first: int, rng: np.random.Generator) -> TreePart:
    """Three children of a new root, and two below each of the first two."""
    parents = [first, first, first, first + 1, first + 1, first + 2, first + 2]
    tokens = [*rng.permutation(4)[:3], *rng.permutation(4)[:2], *rng.permutation(4)[:2]]
    return TreePart(
        seq,
        1,
        int(mirrors.num_frames[seq]),
        int(mirrors.n[seq]),
        first,
        int(mirrors.length[seq]),
        [*range(first + 1, first + 8)],
        parents,
        [int(token) for token in tokens],
        [-1.0] * 7,
        True,
    )


def test_many_sequences_at_once_are_moved_as_one_by_one() -> None:
    rng, seqs = np.random.default_rng(5), list(range(40))
    together, one_by_one = Mirrors(), Mirrors()
    for seq in seqs:
        together.open(seq, 1, 1)
        one_by_one.open(seq, 1, 1)
    seen = set[Knowledge]()
    for number in range(30):
        parts = [whole_tree(together, seq, 1000 * number, rng) for seq in seqs if rng.random() < 0.8]
        # Frames come before the outcome that follows them, or after it.
        is_early = rng.random() < 0.5
        for is_due in (True, False):
            if is_due == is_early:
                together.take(Nodes.of(parts))
                for part in parts:
                    one_by_one.take(Nodes.of([part]))
            if is_due:
                texts = [rng.integers(0, 4, int(rng.integers(1, 4))).tolist() for _ in seqs]
                found = advanced(together, seqs, texts)
                pairs = zip(seqs, texts, strict=True)
                assert found == [advanced(one_by_one, [seq], [text])[0] for seq, text in pairs]
                seen.update(found)
        for name in ("root", "root_length", "length", "length_before", "n", "recent"):
            assert (getattr(together, name) == getattr(one_by_one, name)).all(), name
    assert seen >= {Knowledge.HIT, Knowledge.LATE, Knowledge.UNKNOWN}


def test_paths_of_many_sequences_are_those_of_each() -> None:
    chance = random.Random(3)
    mirrors = Mirrors(40)
    for seq in range(40):
        mirrors.open(seq, seq + 1, 10)
        ids, parents, tokens, logprobs = list[int](), list[int](), list[int](), list[float]()
        for parent in (0, 1, 3, 5):
            if chance.random() < 0.85:
                first = max(ids, default=0) + 1
                ids += [first, first + 1]
                parents += [parent if parent < first else 0] * 2
                tokens += [chance.randrange(50), 60 + chance.randrange(9)]
                logprobs += [-0.3 * chance.random(), -2.0]
        if len({*parents}) == len(parents) // 2:
            mirrors.take(Nodes.of([TreePart(seq, seq + 1, 0, 0, 0, 10, ids, parents, tokens, logprobs)]))
        if seq % 7 == 3:
            mirrors.advance(np.array([seq]), np.array([1]), np.array([tokens[0] if tokens else 1], np.int32))
        if seq % 11 == 5:
            mirrors.close(seq)
    seqs, limits = list(range(40)), [chance.randrange(5) for _ in range(40)]
    found = mirrors.paths(seqs, limits)
    assert sum(bool(tokens) for tokens, _chances in found) > 15
    for seq, limit, (tokens, chances) in zip(seqs, limits, found, strict=True):
        expected = mirrors.path(seq, limit)
        assert tokens == expected[0]
        assert chances == pytest.approx(expected[1])
