"""Incremental text equals the text of all tokens, characters split over tokens included."""

from hypothesis import given
from hypothesis import strategies as st

from ssd.engine.detokenizer import Detokenizer, TextByToken
from tests.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


@given(st.text(min_size=1, max_size=60), st.text(max_size=10))
def test_pieces_join_to_the_whole(text: str, prompt: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False).input_ids
    detokenizer = Detokenizer(TOKENIZER, TOKENIZER(prompt).input_ids, skip_special_tokens=True)
    pieces = [detokenizer.add(token) for token in ids]
    assert "".join(pieces) + detokenizer.flush() == text


def test_half_a_character_is_held_back() -> None:
    ids = TOKENIZER("é🙂", add_special_tokens=False).input_ids
    detokenizer = Detokenizer(TOKENIZER, (), skip_special_tokens=True)
    pieces = [detokenizer.add(token) for token in ids]
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    assert "".join(pieces) == "é🙂"


def test_an_unfinished_character_is_shown_at_the_end() -> None:
    *most, _ = TOKENIZER("a\U0001f600", add_special_tokens=False).input_ids
    detokenizer = Detokenizer(TOKENIZER, (), skip_special_tokens=True)
    text = "".join(detokenizer.add(token) for token in most) + detokenizer.flush()
    assert text.startswith("a\N{REPLACEMENT CHARACTER}")


def test_silent_and_broken_tokens_are_not_read_again_and_again() -> None:
    """A long run of end tokens, or of halves of characters, must not make each step slower than the last."""
    half = TOKENIZER("\U0001f600", add_special_tokens=False).input_ids[0]
    for token in (1, half):
        detokenizer = Detokenizer(TOKENIZER, (), skip_special_tokens=True)
        for _ in range(500):
            detokenizer.add(token)
        assert len(detokenizer._window) < 40


def test_context_survives_silent_tokens() -> None:
    ids = TOKENIZER("ab cd", add_special_tokens=False).input_ids
    detokenizer = Detokenizer(TOKENIZER, (), skip_special_tokens=True)
    text = "".join(detokenizer.add(token) for token in [*ids, *[1] * 30, *ids])
    assert text + detokenizer.flush() == "ab cdab cd"


def test_special_tokens_are_silent_unless_asked_for() -> None:
    ids = [*TOKENIZER("ab", add_special_tokens=False).input_ids, 1]
    for skip, expected in ((True, "ab"), (False, "ab</s>")):
        detokenizer = Detokenizer(TOKENIZER, (), skip_special_tokens=skip)
        assert "".join(detokenizer.add(token) for token in ids) + detokenizer.flush() == expected


def test_divides_a_text_between_its_tokens() -> None:
    """Also if the start of a stop string is held back until the next increment."""
    ids = TOKENIZER("The quick", add_special_tokens=False).input_ids
    texts = [TOKENIZER.decode([each]) for each in ids]
    whole = "".join(texts)
    divided = TextByToken(TOKENIZER, (), skip_special_tokens=True)
    assert divided.divide(whole, ids) == texts
    *first, last = texts
    assert divided.divide(whole[: -len(last)], ids) == [*first, ""]
    assert divided.divide(last + whole, ids) == [last + texts[0], *texts[1:]]
    assert divided.divide("", ()) == []
