"""What a slow reader finds."""

from ssd.engine.outputs import Increment
from ssd.worker.inbox import Inbox


async def test_joined_increments_say_of_each_token_where_it_came_from() -> None:
    inbox = Inbox()
    inbox.put(Increment("r", 0, "a b", (1, 2), None, None, None, ("hit", "target")))
    inbox.put(Increment("r", 1, "x", (9,), None, None, None, ("target",)))
    inbox.put(Increment("r", 0, " c", (3,), None, "length", None, ("backup",)))
    first, second = await inbox.get(), await inbox.get()
    assert first == Increment("r", 0, "a b c", (1, 2, 3), None, "length", None, ("hit", "target", "backup"))
    assert isinstance(second, Increment)
    assert second.origins == ("target",)
