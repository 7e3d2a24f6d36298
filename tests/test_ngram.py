"""What a growing text is remembered for is what looking through it finds."""

import random

import pytest

from ssd.ngram import WINDOW, Repeats, ngram_guess


@pytest.mark.parametrize("vocab", [2, 4, 12])
def test_a_guess_is_that_of_looking_through_the_text(vocab: int) -> None:
    draw = random.Random(vocab)
    for _ in range(40):
        text = [draw.randrange(vocab) for _ in range(draw.randint(1, 30))]
        repeats = Repeats(text)
        for _ in range(20):
            path = [draw.randrange(vocab) for _ in range(draw.randint(0, 6))]
            count = draw.randint(0, 8)
            assert tuple(repeats.guess(path, count)) == ngram_guess(text, path, count)
            text.extend(draw.randrange(vocab) for _ in range(draw.randint(1, 5)))


def test_what_lies_too_far_back_is_forgotten() -> None:
    text = [1, 2, 3, 4, *range(10, WINDOW + 10), 1, 2, 3]
    repeats = Repeats(text)
    assert repeats.guess((), 4) == list(ngram_guess(text, (), 4)) == []
    text.extend((4, 1, 2, 3))
    assert repeats.guess((), 2) == list(ngram_guess(text, (), 2)) == [4, 1]


def test_what_stood_before_the_window_is_forgotten() -> None:
    """Of 32,000 tokens, no three of which come twice, as few places are kept as of 10,000."""
    text: list[int] = []
    repeats, most = Repeats(text), 0
    for start in range(0, 32_000, 100):
        text.extend(range(start, start + 100))
        repeats.guess([], 4)
        most = max(most, repeats.num_kept)
    assert most <= 4 * WINDOW + 200
    text.extend(range(31_900, 31_903))
    assert repeats.guess([], 4) == [31_903, 31_904, 31_905, 31_906]
