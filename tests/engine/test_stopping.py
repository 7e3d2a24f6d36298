"""Stop strings across token borders, inside bursts, and text that is held back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd.engine.request import Generation, Request
from ssd.engine.sequence import Sequence
from ssd.engine.stopping import StopText
from ssd.sampling import SampledToken, SamplingParams
from tests.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def generation(**params: object) -> Generation:
    request = Request("r", None, (5, 6), SamplingParams(**params), 0, end_ids=(1,))  # type: ignore[arg-type]
    sequence = Sequence("r", (5, 6), max_tokens=request.params.max_tokens or 16)
    return Generation(request, sequence, 0, TOKENIZER)


def burst(text: str) -> list[SampledToken]:
    return [SampledToken(token, None) for token in TOKENIZER(text, add_special_tokens=False).input_ids]


def joined(generation: Generation, tokens: list[SampledToken], size: int) -> tuple[str, list[int]]:
    """Takes tokens in bursts of `size`, as a scheduler would: text and counted tokens."""
    text, taken = "", list[int]()
    for first in range(0, len(tokens), size):
        generation.sequence.tokens.extend(generation.settle(tokens[first : first + size], 4096))
        increment = generation.increment(generation.take_results())
        text += increment.text
        taken += increment.token_ids
        if generation.stop is not None:
            break
    return text, taken


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_stop_string_is_cut_and_counted_at_its_own_token_in_any_burst(size: int) -> None:
    tokens = burst("The quick brown fox jumps over the lazy dog.")
    text, taken = joined(generation(stop="fox ju", max_tokens=100), tokens, size)
    assert text == "The quick brown "
    without_last = TOKENIZER.decode(taken[:-1])
    assert "fox ju" in TOKENIZER.decode(taken)
    assert "fox ju" not in without_last


def test_stop_string_can_be_kept() -> None:
    tokens = burst("The quick brown fox jumps")
    text, _ = joined(generation(stop="brown", include_stop_str_in_output=True, max_tokens=100), tokens, 3)
    assert text == "The quick brown"


def test_the_earliest_of_several_stop_strings_wins() -> None:
    state = generation(stop=["lazy", "quick", "brown"], max_tokens=100)
    text, _ = joined(state, burst("The quick brown fox"), 100)
    assert (text, state.stop.stop_reason) == ("The ", "quick")  # type: ignore[union-attr]


def test_stop_strings_wait_for_min_tokens() -> None:
    tokens = burst("The quick brown fox jumps over the lazy dog. The quick")
    text, taken = joined(generation(stop="quick", min_tokens=len(tokens) - 1, max_tokens=100), tokens, 4)
    assert text == "The quick brown fox jumps over the lazy dog. The "
    assert len(taken) == len(tokens)


def test_end_token_ends_silently_and_later_tokens_do_not_count() -> None:
    state = generation(max_tokens=100)
    tokens = [*burst("The quick"), SampledToken(1, None), *burst(" brown")]
    text, taken = joined(state, tokens, 100)
    assert (text, taken[-1], state.stop.finish_reason) == ("The quick", 1, "stop")  # type: ignore[union-attr]


def test_ignore_eos_goes_on() -> None:
    state = generation(max_tokens=100, ignore_eos=True)
    joined(state, [SampledToken(1, None), *burst(" brown")], 100)
    assert state.stop is None


def test_max_tokens_cuts_a_burst() -> None:
    state = generation(max_tokens=3)
    _, taken = joined(state, burst("The quick brown fox jumps over"), 100)
    assert (len(taken), state.stop.finish_reason) == (3, "length")  # type: ignore[union-attr]


def test_stop_token_is_named() -> None:
    token = burst("!")[0].token
    state = generation(stop_token_ids=(token,), max_tokens=100)
    joined(state, burst("a!b"), 100)
    assert state.stop.stop_reason == token  # type: ignore[union-attr]


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=4), max_size=12),
)
def test_stop_text_equals_a_search_of_the_whole(stops: list[str], pieces: list[str]) -> None:
    """Released text never contains a stop, and is the whole text cut at the first completed one."""
    matcher, released, read = StopText(stops, include_stop=False), "", ""
    for piece in pieces:
        read += piece
        text, found = matcher.add(piece)
        released += text
        if found is not None:
            cut = min(read.find(stop) for stop in stops if stop in read)
            assert released == read[:cut]
            return
        assert not any(stop in read for stop in stops)
        assert read.startswith(released)
    assert released + matcher.pass_by("") == read


def test_aborted_generation_releases_what_it_held() -> None:
    state = generation(stop="quick!", max_tokens=100)
    text, _ = joined(state, burst("The quick"), 100)
    assert text + state.abort().text == "The quick"


def test_a_text_that_is_cut_within_a_character_is_that_of_its_tokens() -> None:
    *tokens, _ = burst("a\U0001f600")
    text, taken = joined(generation(max_tokens=len(tokens)), tokens, 1)
    assert text == TOKENIZER.decode(taken)
    assert text.endswith("\N{REPLACEMENT CHARACTER}")
