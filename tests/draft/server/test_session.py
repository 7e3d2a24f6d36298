"""What a session declines before anything is read for it."""

import pytest

from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server.session import DraftSession


def session(**sampling: object) -> DraftSession:
    opening = Open(0, 1, pack_ints([1, 2, 3]), 3, 100, 4, Sampling(seed=0, **sampling))  # type: ignore[arg-type]
    return DraftSession(opening, max_len=100)


def test_noise_that_the_draft_cannot_compute_is_declined_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"'xorshift'.*supports philox, murmur3.*temperature of 0"):
        session(noise="xorshift", temperature=0.7)
    # Where nothing is drawn with it, it does not matter.
    session(noise="xorshift")
    session(noise="philox", temperature=0.7)
