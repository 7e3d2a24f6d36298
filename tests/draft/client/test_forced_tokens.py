"""What must follow is told to the draft before it is verified: both sides stay in step, whatever comes."""

from array import array
from pathlib import Path

import pytest

from ssd.draft.client.client import DraftClient
from ssd.draft.client.mirrors import Knowledge
from ssd.draft.client.proposals import DraftedTokens
from ssd.draft.client.router import ClientSession
from ssd.draft.protocol.messages import Sampling
from ssd.runtime.loading import LoadedModel
from tests.draft.client.test_grammar_paths import Rules
from tests.draft.server.test_room import Draft, connected, rounds
from tests.draft.tree.real import load

TEXT = [3, 5, 8, 13, 21]


@pytest.fixture(scope="module")
def draft(tiny_llama: Path) -> LoadedModel:
    return load(tiny_llama)


def session(*foretold: int) -> ClientSession:
    return ClientSession(0, array("i", [*TEXT, *foretold]), 5, Sampling(seed=1), 100, forced=foretold)


@pytest.mark.parametrize(
    ("decided", "new", "left"),
    [((40, 41, 9), (9,), ()), ((40, 41), (), ()), ((40,), (), (41,)), ((40, 9), None, ()), ((9,), None, ())],
)
def test_what_was_decided_is_added_once(
    decided: tuple[int, ...], new: tuple[int, ...] | None, left: tuple[int, ...]
) -> None:
    sequence = session(40, 41)
    found = sequence.take_decided(decided)
    assert found == new
    assert sequence.forced == left
    assert list(sequence.tokens) == [*TEXT, *decided, *left]


def test_a_path_goes_on_behind_what_is_certain() -> None:
    tree = DraftedTokens([7, 8, 9], [0.6, 0.3, 0.2], (-1, -1, 0)).behind([4, 5])
    assert (list(tree.tokens), tree.parents) == ([4, 5, 7, 8, 9], (-1, 0, 1, 1, 2))
    assert list(tree.chances) == [1.0, 1.0, 0.6, 0.3, 0.2]
    assert DraftedTokens([7], [0.6]).behind([4]).parents is None


def begun(draft: LoadedModel) -> tuple[Draft, DraftClient]:
    source = Draft(draft, num_blocks=64)
    client = connected(source)
    client.follow("a", TEXT, len(TEXT), Sampling(seed=1), 100)
    rounds(source, client, 4)
    return source, client


def test_the_draft_is_ahead_of_what_must_follow_when_it_is_verified(draft: LoadedModel) -> None:
    source, client = begun(draft)
    client.send_forced([("a", [40, 41])])
    rounds(source, client, 6)
    place = Rules(forced={(): 40, (40,): 41})
    [path] = client.paths(["a"], 8, {"a": place})
    assert list(path.tokens[:2]) == [40, 41]
    assert len(path.tokens) > 2  # the draft knows what follows them
    client.send_forced([("a", [40, 41])])  # the same again adds nothing
    assert client.outcomes([("a", [40, 41, path.tokens[2]])]) == [Knowledge.HIT]
    assert list(client.text_of("a")[0]) == [*TEXT, 40, 41, path.tokens[2]]
    rounds(source, client, 2)


def test_who_does_not_know_the_grammar_gets_nothing_behind_what_was_foretold(
    draft: LoadedModel,
) -> None:
    source, client = begun(draft)
    assert client.paths(["a"], 4)[0].tokens
    client.send_forced([("a", [40, 41])])
    rounds(source, client, 6)
    assert not client.paths(["a"], 4)[0].tokens
    assert list(client.text_of("a")[0]) == TEXT
