"""A history reads like the list it stands for, whatever happens to its base afterwards."""

from hypothesis import given
from hypothesis import strategies as st

from ssd.sampling import History

PLACES = st.one_of(st.none(), st.integers(-12, 12))


@given(
    base=st.lists(st.integers(0, 9), max_size=8),
    start=st.integers(0, 8),
    more=st.lists(st.integers(0, 9), max_size=4),
    first=PLACES,
    last=PLACES,
    step=st.one_of(st.none(), st.sampled_from([-2, -1, 1, 2])),
)
def test_slices_are_those_of_the_list(
    base: list[int], start: int, more: list[int], first: int | None, last: int | None, step: int | None
) -> None:
    start = min(start, len(base))
    history, tokens = History(base, start).followed_by(more), base[start:] + more
    base.append(99)
    assert list(history) == tokens
    assert history[first:last:step] == tokens[first:last:step]
    assert [history[place] for place in range(len(tokens))] == tokens
