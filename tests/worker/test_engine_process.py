"""How an EngineProcess ends, with a process that only waits for its end."""

import asyncio
from typing import Any

import pytest

from ssd.engine.async_llm import EngineDeadError
from ssd.worker.engine_process import EngineProcess
from ssd.worker.engine_sockets import Addresses, WorkerSocket
from ssd.worker.messages import Failed, encode


class Child:
    exit_code: int | None = None

    def end(self) -> None:
        self.exit_code = 1


def process_of(child: Any) -> tuple[EngineProcess, Addresses]:
    addresses = Addresses.private()
    return EngineProcess(addresses, child, None), addresses


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
