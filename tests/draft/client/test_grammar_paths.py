"""Paths under a grammar: the likeliest child that is allowed, and what must follow without any draft."""

import math
from dataclasses import dataclass, field

import pytest

from ssd.draft.client.proposals import path_under
from ssd.draft.protocol.messages import TreePart
from tests.draft.client.one_mirror import ROW, OneMirror

TREE = {
    (): [(11, 0.6), (12, 0.3), (13, 0.05)],
    (11,): [(14, 0.9)],
    (12,): [(15, 0.7), (16, 0.2)],
    (12, 16): [(17, 0.8)],
}
"""By the tokens before it, what the draft holds likely."""


@dataclass(frozen=True)
class Rules:
    """A grammar by what it forbids, and what it forces, after which tokens."""

    forbidden: frozenset[tuple[int, ...]] = frozenset()
    forced: dict[tuple[int, ...], int] = field(default_factory=dict)
    so_far: tuple[int, ...] = ()

    def only(self) -> int | None:
        return self.forced.get(self.so_far)

    def allows(self, token: int) -> bool:
        return (*self.so_far, token) not in self.forbidden

    def after(self, token: int) -> "Rules":
        return Rules(self.forbidden, self.forced, (*self.so_far, token))


def mirror() -> OneMirror:
    ids, parents, tokens, logprobs = list[int](), list[int](), list[int](), list[float]()
    places: dict[tuple[int, ...], int] = {(): 0}
    for path, children in TREE.items():
        for token, chance in children:
            places[(*path, token)] = len(ids) + 1
            ids.append(len(ids) + 1)
            parents.append(places[path])
            tokens.append(token)
            logprobs.append(math.log(chance))
    found = OneMirror(1)
    found.take(TreePart(ROW, 1, 0, 0, 0, 0, ids, parents, tokens, logprobs))
    return found


def path(rules: Rules, limit: int = 8, *, behind: bool = False) -> tuple[list[int], list[float]]:
    """`behind`: the draft knows nothing of the text's end."""
    table = mirror().table
    return path_under(table, ROW, None if behind else table.end_of(ROW), limit, rules)


def test_what_is_allowed_is_the_likeliest_path() -> None:
    tokens, chances = path(Rules())
    assert tokens == [11, 14]
    assert chances == pytest.approx([0.6, 0.54])


def test_the_likeliest_that_is_allowed_goes_on_where_the_likeliest_of_all_is_forbidden() -> None:
    rules = Rules(frozenset({(11,), (12, 15)}))
    tokens, chances = path(rules)
    assert tokens == [12, 16, 17]
    # Of the 0.95 that the draft named 0.35 are allowed; after 12, of 0.9 only 0.2.
    first = 0.3 * 0.95 / 0.35
    assert chances == pytest.approx([first, first * 0.9, first * 0.9 * 0.8])
    assert path(rules, 2)[0] == [12, 16]


def test_only_what_must_follow_is_certain() -> None:
    """The only known token that is allowed is not the only one that is."""
    table = OneMirror(1)
    table.take(TreePart(ROW, 1, 0, 0, 0, 0, [1, 2], [0, 0], [11, 12], [0.0, -40.0]))
    tokens, [chance] = path_under(table.table, ROW, 0, 8, Rules(frozenset({(12,)})))
    assert tokens == [11]
    assert 0.999 < chance < 1.0


def test_where_nothing_known_is_allowed_the_path_ends() -> None:
    assert path(Rules(frozenset({(11,), (12,), (13,)}))) == ([], [])
    assert path(Rules(frozenset({(11, 14)})))[0] == [11]


def test_what_must_follow_is_certain_whatever_the_draft_says() -> None:
    tokens, chances = path(Rules(forced={(): 12, (12,): 16}))
    assert tokens == [12, 16, 17]  # and its own path is found again below
    assert chances == pytest.approx([1.0, 1.0, 0.8])


def test_what_must_follow_goes_on_behind_the_tree() -> None:
    rules = Rules(forced={(11, 14): 90, (11, 14, 90): 91})
    assert path(rules)[0] == [11, 14, 90, 91]
    assert path(rules, 3)[0] == [11, 14, 90]
    assert path(Rules(forced={(): 90, (90,): 91}), behind=True) == ([90, 91], [1.0, 1.0])
    assert path(Rules(), behind=True) == ([], [])
