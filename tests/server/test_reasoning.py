"""Reasoning told apart from the answer, wherever the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd.server.pieces import Content, Piece, Reasoning, ReasoningSplitter, thinks


def split(text: str, cuts: list[int] | None = None, *, inside: bool = False) -> tuple[str, str]:
    splitter = ReasoningSplitter(inside=inside)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts or ()), len(text)]
    pieces: list[Piece] = []
    for start, end in pairwise(edges):
        pieces += splitter.add(text[start:end])
    pieces += splitter.finish()
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    return reasoning, "".join(piece.text for piece in pieces if isinstance(piece, Content))


CASES = {
    "<think>\nFirst, then.\n</think>\n\nIt is 4.": ("First, then.", "It is 4."),
    "\n<think>a < b</think>b > a": ("a < b", "b > a"),
    "<think>\n\n</think>\n\nAt once.": ("", "At once."),
    "No thought.\n": ("", "No thought.\n"),
    "  indented": ("", "  indented"),
    "<thin": ("", "<thin"),
    "<think>never ends": ("never ends", ""),
    "<think>almost</thin": ("almost</thin", ""),
    "x <think>y</think> z": ("", "x <think>y</think> z"),
    "<think>a\n\nb </think> c <think>d": ("a\n\nb", "c <think>d"),
    "": ("", ""),
}


@pytest.mark.parametrize("text", CASES)
def test_whole_texts(text: str) -> None:
    assert split(text) == CASES[text]


@given(st.sampled_from(sorted(CASES)), st.lists(st.integers(0, 40), max_size=12))
def test_cuts_change_nothing(text: str, cuts: list[int]) -> None:
    assert split(text, cuts) == CASES[text]


@given(st.lists(st.integers(0, 40), max_size=12))
def test_a_prompt_may_open_the_block(cuts: list[int]) -> None:
    assert split("So it is.\n</think>\n\nFour.", cuts, inside=True) == ("So it is.", "Four.")


def test_a_template_tells_whether_its_model_thinks() -> None:
    qwen3 = "{% if '</think>' in content %}…{% endif %}"
    assert thinks(qwen3, "auto")
    assert not thinks("{{ messages }}", "auto")
    assert not thinks(None, "auto")
    assert not thinks(qwen3, "none")
    assert thinks("{{ messages }}", "think")
