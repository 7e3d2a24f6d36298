"""`run_server`: runs the HTTP server until it ends, and returns its exit code.

Knows signals and the order of shutdown: refuse new requests, finish running ones, stop the engine, exit. When
the engine dies, the server exits too, so that a supervisor restarts both.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn

from ssd.config import EngineConfig
from ssd.config.server import ServerConfig
from ssd.errors import EngineDeadError
from ssd.processes.logs import start_log
from ssd.processes.sockets import open_port
from ssd.server.app import build_app
from ssd.server.gate import Gate
from ssd.server.metrics import Metrics
from ssd.server.protocol import protocol_for
from ssd.server.serving import Serving
from ssd.worker.async_llm import AsyncLLM

logger = logging.getLogger(__name__)

ENGINE_DIED = 1
_KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep an idle connection (httpx: 5 s). Otherwise the server could close a connection
just as a client sends a request on it."""
_CLOSING_SECONDS = 2.0
"""Part of drain_seconds that is kept for closing connections and the engine."""
_LAST_ANSWERS_SECONDS = 1.0
"""Time after the engine's death for requests to be answered and /health to report it."""


def run_server(engine: EngineConfig, server: ServerConfig) -> int:
    """Serve until a signal (exit code 0) or the engine's death (1). Raises ValueError for settings that
    cannot work."""
    start_log("server", server.log_level, server.log_format)
    return asyncio.run(_serve(engine, server))


async def _serve(engine: EngineConfig, server: ServerConfig) -> int:
    metrics = Metrics()
    listener = open_port(server.host, server.port)
    llm = AsyncLLM(
        engine,
        log_level=server.log_level,
        log_format=server.log_format,
        on_increment=metrics.note_increment,
    )
    metrics.watch(llm)
    serving = Serving(llm, server, metrics, Gate(llm, max_queue=server.max_queue))
    front = _Front(serving, listener)
    try:
        return await front.run()
    finally:
        logger.info("ending the engine")
        await llm.close()


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers, which would close the socket before requests can be refused."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Front:
    def __init__(self, serving: Serving, listener: socket.socket) -> None:
        self._serving, self._listener = serving, listener
        self._uvicorn = _QuietServer(
            uvicorn.Config(
                build_app(serving),
                http=protocol_for(serving.config),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                timeout_graceful_shutdown=1,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            )
        )
        self._signalled, self._is_hurried = asyncio.Event(), asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        overseer = asyncio.create_task(self._oversee())
        await self._uvicorn.serve(sockets=[self._listener])
        return await overseer

    def _on_signal(self) -> None:
        if self._signalled.is_set():
            self._uvicorn.should_exit = self._uvicorn.force_exit = True
            self._is_hurried.set()
        self._signalled.set()

    async def _oversee(self) -> int:
        """Wait for a signal or the engine's death; returns the exit code."""
        signalled = asyncio.create_task(self._signalled.wait())
        lost = asyncio.create_task(self._until_lost())
        try:
            await asyncio.wait((signalled, lost), return_when=asyncio.FIRST_COMPLETED)
            if not lost.done():
                return await self._drain(lost)
            await asyncio.sleep(_LAST_ANSWERS_SECONDS)
            await self._serving.llm.ready()  # Raises the reason if the engine never became ready.
            return ENGINE_DIED
        except EngineDeadError:
            return ENGINE_DIED
        finally:
            for task in (signalled, lost):
                task.cancel()
            await asyncio.gather(signalled, lost, return_exceptions=True)
            self._uvicorn.should_exit = True

    async def _drain(self, dead: "asyncio.Task[None]") -> int:
        seconds = self._serving.config.drain_seconds
        if self._serving.gate.is_empty:
            logger.info("shutting down; no request was running")
        else:
            logger.info(
                "shutting down; running requests have %.0f s to finish; a second signal ends them at once",
                seconds,
            )
        for_requests = max(seconds - _CLOSING_SECONDS, seconds / 2)
        drained = asyncio.create_task(self._serving.gate.drain(for_requests))
        hurried = asyncio.create_task(self._is_hurried.wait())
        await asyncio.wait((drained, hurried, dead), return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        hurried.cancel()
        return ENGINE_DIED if dead.done() else 0

    async def _until_lost(self) -> None:
        """Return when the engine dies; raise the reason if it fails to start."""
        await self._serving.llm.ready()
        host, port = self._listener.getsockname()[:2]
        logger.info("ready: %s on http://%s:%d", self._serving.model_name, host, port)
        await self._serving.llm.dead()
