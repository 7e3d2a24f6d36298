"""How an EngineProcess ends, with a process that only waits for its end; and what a slow reader finds."""

import asyncio
from typing import Any

import pytest

from ssd.engine.outputs import Increment
from ssd.errors import EngineDeadError
from ssd.worker.engine_process import EngineProcess, Inbox
from ssd.worker.engine_sockets import Addresses, WorkerSocket
from ssd.worker.messages import Failed, encode


class Child:
    exit_code: int | None = None

    def end(self) -> None:
        self.exit_code = 1


def process_of(child: Any) -> tuple[EngineProcess, Addresses]:
    addresses = Addresses.private()
    return EngineProcess(addresses, child), addresses


async def test_an_engine_s_last_words_reach_whoever_asks() -> None:
    child = Child()
    process, addresses = process_of(child)
    socket = WorkerSocket(addresses)
    socket.send(encode([Failed("the device is gone")]))
    socket.close()
    child.end()
    await asyncio.wait_for(process.dead(), 30)
    with pytest.raises(EngineDeadError, match="the device is gone"):
        raise process.dead_error()
    await process.close()


async def test_nothing_is_left_of_a_line_that_is_closed() -> None:
    process, addresses = process_of(Child())
    assert addresses.folder.exists()
    await process.close()
    assert not addresses.folder.exists()


async def test_joined_increments_say_of_each_token_where_it_came_from() -> None:
    inbox = Inbox()
    inbox.put(Increment("r", 0, "a b", (1, 2), None, None, None, ("hit", "target")))
    inbox.put(Increment("r", 1, "x", (9,), None, None, None, ("target",)))
    inbox.put(Increment("r", 0, " c", (3,), None, "length", None, ("backup",)))
    first, second = await inbox.get(), await inbox.get()
    assert first == Increment("r", 0, "a b c", (1, 2, 3), None, "length", None, ("hit", "target", "backup"))
    assert isinstance(second, Increment)
    assert second.origins == ("target",)
