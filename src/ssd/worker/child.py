"""The engine process as its parent sees it: started, watched, ended.

Knows a process and its lifeline, the standard input it holds the other end of. Does not know
what is said over the sockets.
"""

import asyncio
import contextlib
import logging
import os
import sys

import msgspec

from ssd.config import EngineConfig
from ssd.worker.link import Addresses
from ssd.worker.program import WorkerSettings

logger = logging.getLogger(__name__)

_GRACE = 5.0
"""Seconds for an engine that was asked to end; a stopped process hears nothing and is killed then."""
_LOGS = {"SSD_LOG_FORMAT": "json", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Variables for the engine and the draft it starts: both write to the standard error of their parent."""


class Child:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, config: EngineConfig, addresses: Addresses, *, log_level: str) -> "Child":
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "ssd.worker.program",
            str(addresses.folder),
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, **_LOGS},
            # In a session of its own: Ctrl-C is for the server, which ends the engine in its own time.
            start_new_session=True,
        )
        if process.stdin is not None:
            process.stdin.write(msgspec.json.encode(WorkerSettings(config, log_level)) + b"\n")
        logger.info("started an engine, process %d", process.pid)
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Its exit code, once it has ended; negative: the signal that ended it."""
        return await self._process.wait()

    async def end(self) -> None:
        """Cuts the lifeline, and does not wait for ever. The draft hangs on the engine's own."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _GRACE)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
