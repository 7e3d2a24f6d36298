"""Closes connections of clients that are too slow to send headers or to read their answers.

Knows uvicorn's protocol class. The deadline for request bodies is in body_limit.py, which can still answer.
"""

import asyncio
import time
from functools import partial
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ssd.config.server import ServerConfig
from ssd.server.errors import ApiError

_LEAST_READ = 16 << 10
"""A client that reads fewer bytes than this in `write_seconds` is disconnected."""
_MOST_UNREAD = 256 << 20
"""Limit on unread bytes of all answers together. Beyond it, the connection with most of them is aborted."""


def protocol_for(config: ServerConfig) -> Any:
    """The protocol factory for uvicorn."""
    return partial(BoundedProtocol, config)


class BoundedProtocol(H11Protocol):
    def __init__(self, limits: ServerConfig, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        """Timer for the rest of a request's headers."""
        self._reading: asyncio.TimerHandle | None = None
        """Timer for a client that does not read its answer."""
        self._num_unread, self._unread_since = 0, 0.0
        self._waiting_since = 0.0

    @property
    def waiting_since(self) -> float | None:
        """Since when the server has been waiting for the client to send or read; None while it is not."""
        if self._reading is not None:
            return self._unread_since
        is_at_work = self.cycle is not None and not self.cycle.response_complete
        return None if is_at_work and not self.cycle.more_body else self._waiting_since

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting_since = time.monotonic()
        self._wait_for_client()
        if len(self.connections) > self._limits.max_connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting_for_client()
        self._stop_waiting_for_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_client()

    def on_response_complete(self) -> None:
        self._waiting_since = time.monotonic()
        super().on_response_complete()
        self._wait_for_client()
        if self.transport.get_write_buffer_size():
            self._wait_for_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_since = time.monotonic()
        self._wait_for_reader()
        self._bound_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting_for_reader()

    def timeout_keep_alive_handler(self) -> None:
        # A plain close would wait forever for unread data to be read.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        # An error in an ignored body is found after the answer was sent.
        if self.conn.our_state is h11.IDLE or self.conn.our_state is h11.SEND_RESPONSE:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _wait_for_client(self) -> None:
        """Start the headers' deadline at a request's first byte; uvicorn has its own for idle connections."""
        is_at_work = self.cycle is not None and not self.cycle.response_complete
        is_idle = self.timeout_keep_alive_task is not None and not self._has_begun()
        if is_at_work or is_idle:
            self._stop_waiting_for_client()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self._limits.header_seconds, self.transport.abort)

    def _stop_waiting_for_client(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _has_begun(self) -> bool:
        """Whether part of a request has arrived, or part of an answered request's body is still missing."""
        is_between = self.conn.their_state is h11.IDLE or self.conn.their_state is h11.DONE
        return not is_between or bool(self.conn.trailing_data[0])

    def _wait_for_reader(self) -> None:
        if self._reading is None:
            self._num_unread = self.transport.get_write_buffer_size()
            self._reading = self.loop.call_later(self._limits.write_seconds, self._check_reader)

    def _stop_waiting_for_reader(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _check_reader(self) -> None:
        self._reading = None
        num_unread = self.transport.get_write_buffer_size()
        if num_unread > max(0, self._num_unread - _LEAST_READ):
            self.transport.abort()  # The task that answers is notified of the disconnect.
        elif num_unread:
            self._wait_for_reader()

    def _open_connections(self) -> "list[BoundedProtocol]":
        """Connections that are not closing; uvicorn's set contains closing ones too."""
        known = [each for each in self.connections if isinstance(each, BoundedProtocol)]
        return [each for each in known if not each.transport.is_closing()]

    def _bound_unread(self) -> None:
        unread = [(each.transport.get_write_buffer_size(), each) for each in self._open_connections()]
        unread.sort(key=lambda pair: pair[0])
        while sum(size for size, _ in unread) > _MOST_UNREAD:
            unread.pop()[1].transport.abort()

    def _make_room(self) -> None:
        """Close the connection that the server has waited for longest; if there is none, refuse this one."""
        others = [each for each in self._open_connections() if each is not self]
        if len(others) < self._limits.max_connections:
            return
        waiting = [(each.waiting_since, each) for each in others if each.waiting_since is not None]
        if waiting:
            min(waiting, key=lambda pair: pair[0] or 0.0)[1].transport.abort()
            return
        error = ApiError(503, "every connection is in use: try again soon", code="too_many_connections")
        head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(error.body)}\r\nRetry-After: 1\r\n"
        self.transport.write(f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode())
        self.transport.write(error.body)
        self.transport.close()
