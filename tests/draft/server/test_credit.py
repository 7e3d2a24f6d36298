"""A draft stops when nobody says that its frames arrive: after 64, or 4 for each token of lookahead."""

from collections import deque

import pytest

from benchmarks.ruled import hello
from ssd.draft.protocol.codec import decode, encode
from ssd.draft.protocol.messages import AnyMessage, Nodes, Open, Sampling, pack_ints
from ssd.draft.protocol.sockets import Heard
from tests.draft.crowd import STEP, Crowd
from tests.draft.protocol.frames import outcomes

PEER = b"target"


class Unread:
    """A target that reads nothing but the number of frames."""

    def __init__(self, lookahead: int) -> None:
        # One row a step: the tree is not full before the credit is used up.
        self._crowd = Crowd(width=1)
        self._crowd.hub.outboxes[PEER] = deque()
        self.says(hello("target"))
        self.says(Open(0, 1, pack_ints([5, 6, 7]), 3, 3000, lookahead, Sampling(seed=1)))

    def says(self, message: AnyMessage) -> None:
        self._crowd.hub.inbox.append(Heard(PEER, encode([message]), "target"))

    def num_frames(self) -> int:
        """Until no more come."""
        count, num_silent = 0, 0
        while num_silent < 20:
            self._crowd.service.turn(0.0)
            self._crowd.now += STEP
            heard = self._crowd.hub.outboxes[PEER]
            messages = [each for _ in range(len(heard)) for each in decode(heard.popleft(), vocab_size=400)]
            new = sum(isinstance(each, Nodes) for each in messages)
            count, num_silent = count + new, 0 if new else num_silent + 1
        return count


@pytest.mark.parametrize(("lookahead", "credit"), [(4, 64), (16, 64), (24, 96)])
def test_so_many_frames_may_be_under_way(lookahead: int, credit: int) -> None:
    target = Unread(lookahead)
    assert target.num_frames() == credit
    # It hears that 16 of them arrived: it may send so many more.
    following = (31 * 7 + 7) % 398 + 2
    target.says(outcomes((0, 1, 1, 16, 1), tokens=[following]))
    assert target.num_frames() == 16
