"""What was written is counted as a text grows, whatever was drafted in between."""

from collections import Counter

import pytest

from ssd.sampling import History, Tally


@pytest.mark.parametrize("num_accepted", range(4))
def test_drafted_tokens_count_once_they_are_decided(num_accepted: int) -> None:
    prompt, drafted, own = [8, 9], [5, 5, 6], 7
    tokens, tally = [*prompt, 5], Tally(prompt)
    for count in range(len(drafted) + 1):
        output = History(tokens, len(prompt)).followed_by(drafted[:count])
        assert counts(tally, output) == Counter([5, *drafted[:count]])
    tokens += [*drafted[:num_accepted], own]
    assert counts(tally, History(tokens, len(prompt))) == Counter(tokens[len(prompt) :])


def counts(tally: Tally, output: History) -> dict[int, int]:
    ids, times = tally.output_counts(output)
    return dict(zip(ids.tolist(), times.tolist(), strict=True))
