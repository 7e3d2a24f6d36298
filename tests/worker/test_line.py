"""How the line to an engine process ends, with a process that only waits for its end."""

import asyncio
from typing import Any

import pytest

from ssd.engine.async_llm import EngineDeadError
from ssd.worker.line import EngineLine
from ssd.worker.link import Addresses, WorkerLink
from ssd.worker.messages import Failed, encode


class Child:
    exit_code: int | None = None

    def end(self) -> None:
        self.exit_code = 1


def line_to(child: Any) -> tuple[EngineLine, Addresses]:
    addresses = Addresses.private()
    return EngineLine(addresses, child, None), addresses


async def test_an_engine_s_last_words_reach_whoever_asks() -> None:
    child = Child()
    line, addresses = line_to(child)
    link = WorkerLink(addresses)
    link.send(encode([Failed("the device is gone")]))
    link.close()
    child.end()
    await asyncio.wait_for(line.dead(), 30)
    with pytest.raises(EngineDeadError, match="the device is gone"):
        raise line.dead_error()
    await line.close()


async def test_nothing_is_left_of_a_line_that_is_closed() -> None:
    line, addresses = line_to(Child())
    assert addresses.folder.exists()
    await line.close()
    assert not addresses.folder.exists()
