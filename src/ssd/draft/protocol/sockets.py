"""Links between engine and draft: ZeroMQ, Unix sockets by default, TCP only with keys.

Knows addresses, keys and bytes. Does not know messages. No call blocks longer than it was told
to: a full queue is reported, never waited for.
"""

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from ssd.draft.protocol.messages import MAX_FRAME_BYTES
from ssd.draft.protocol.read_guard import Backlog, Read, ReadGuard, shut

logger = logging.getLogger(__name__)

_SHARED_KEY = "engine"
"""The key of all engines that have no name."""
_QUEUED_FRAMES = 1000
"""That wait to be sent."""
_UNREAD_FRAMES = 0
"""No bound on the number of frames that wait to be read; their bytes are bounded (MOST_UNREAD). libzmq 4.3.5
stops reading a connection whose queue is full. If that connection then ends and a heartbeat is due before the
queue is read, libzmq aborts the process: an engine that ends would take the draft with it."""
_ENCRYPTION_BYTES = 64
"""That a message grows by at most, and that are counted with it."""
_KERNEL_BYTES = 4 << 20
"""Receive buffer of a connection. Without a bound Linux takes up to 32 MiB, all of which counts as unread."""
MOST_UNREAD = 48 << 20
"""Bytes in unread frames, parts of frames and the kernel that end a connection (read_guard.py)."""
_ENGINES_HEARTBEAT = (5_000, 20_000)
"""Milliseconds between signs of life, and without one until a line is given up. What a draft does not say in
time is the connection's to notice."""
_DRAFTS_HEARTBEAT = (1_500, 5_000)
"""Of an engine that is gone, or cut off, nothing may be left after 10 seconds."""
_CONNECT_MS = 1000
"""After that a connection is tried anew: what the system does by itself comes ever more seldom."""
_LONGEST_RECONNECT_MS = 1000
"""ZeroMQ tries a connection anew after 0.1 s, and after twice as long each time, with jitter, up to this."""


class SocketError(OSError):
    """The other side is gone, or takes nothing any more."""


class EngineSocket(Protocol):
    """The engine's end."""

    def send(self, frame: bytes) -> None: ...

    def receive(self, timeout: float) -> bytes | None:
        """The next frame; None if none comes within `timeout` seconds."""
        ...

    def overfull(self) -> str:
        """Why it must end: far more has come than is read. Empty: it need not."""
        ...

    def close(self) -> None: ...


class Heard(NamedTuple):
    """A frame, and who sent it."""

    peer: bytes
    frame: bytes
    key: str = ""
    """The name of the key that let it in; empty where all have the same, or none."""


class DraftSocket(Protocol):
    """The draft's end: one draft may serve several engines."""

    def send(self, peer: bytes, frame: bytes) -> None: ...

    def receive(self, timeout: float) -> Heard | None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Keys:
    """One side's folder of CURVE certificates, as `make_keys` writes it: its own pair, the others' public."""

    folder: Path

    def names(self) -> dict[bytes, str]:
        """Those that a draft lets in, by their public keys; none: it lets nobody in."""
        return {self.public(path.stem): path.stem for path in sorted(self.folder.glob("*.key"))}

    def require_any(self) -> None:
        """ValueError if the folder holds no public key, which at a start is a mistake."""
        if not self.names():
            self._file(f"{_SHARED_KEY}.key")

    def state(self) -> list[tuple[str, int, int]]:
        """Another one once a public key was added, removed or replaced, or may be read by others."""
        found = []
        for path in sorted(self.folder.glob("*.key")):
            with contextlib.suppress(FileNotFoundError):  # It has just been removed.
                found.append((path.name, path.stat()))
        return [(name, stat.st_ctime_ns, stat.st_ino) for name, stat in found]

    def public(self, name: str) -> bytes:
        return zmq.auth.load_certificate(self._file(f"{name}.key"))[0]

    def pair(self, name: str) -> tuple[bytes, bytes]:
        public, secret = zmq.auth.load_certificate(self._file(f"{name}.key_secret"))
        if secret is None:
            raise ValueError(f"{self.folder}: {name}.key_secret holds no secret key")
        return public, secret

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise ValueError(
                f"{path} is missing: make keys with `ssd draft --make-keys FOLDER`, and give the draft "
                "FOLDER/draft and the engine FOLDER/engine"
            )
        return path


def make_keys(folder: Path) -> None:
    """A folder for each side, with its own secret and the other's public key; only this user can enter."""
    sides = {name: _new_folder(folder / name) for name in ("draft", "engine")}
    for name, other in (("draft", "engine"), ("engine", "draft")):
        _make_pair(name, sides[name], sides[other] / f"{name}.key")


def make_tenant_keys(folder: Path, tenant: str) -> None:
    """For engines of a tenant, beside what `make_keys` wrote: the draft knows their key by its name."""
    if not tenant.replace("-", "_").isidentifier() or tenant in ("draft", _SHARED_KEY):
        raise ValueError(
            f"{tenant!r} is no name of a tenant: use letters, digits, - and _, and neither draft nor engine"
        )
    public, _secret = Keys(folder / "draft").pair("draft")
    own = _new_folder(folder / tenant)
    _make_pair(_SHARED_KEY, own, folder / f"draft/{tenant}.key")
    (own / "draft.key").write_text(f'metadata\ncurve\n    public-key = "{public.decode()}"\n')


def _new_folder(path: Path) -> Path:
    if path.exists():
        raise ValueError(f"{path} is there already: choose another folder or remove it first")
    path.mkdir(mode=0o700, parents=True)
    return path


def _make_pair(name: str, own: Path, public: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        zmq.auth.create_certificates(made, name)
        secret = Path(made, f"{name}.key_secret")
        secret.chmod(0o600)
        shutil.move(secret, own)
        shutil.move(Path(made, f"{name}.key"), public)


def check_address(address: str, keys: Keys | None) -> None:
    if address.startswith("ipc://"):
        return
    if not address.startswith("tcp://"):
        raise ValueError(f"{address!r} is no address: use ipc:///path/to/socket or tcp://host:port")
    if keys is None:
        raise ValueError(
            f"{address} can be reached by others, so it needs keys: make them with `ssd draft --make-keys "
            "FOLDER`, give the draft FOLDER/draft (--keys) and the engine FOLDER/engine (draft.keys)"
        )


_contexts: "dict[int, zmq.Context[zmq.Socket[bytes]]]" = {}
"""By process, since a forked child needs its own. All connections of a target share its two threads."""


def _shared_context() -> "zmq.Context[zmq.Socket[bytes]]":
    """Never ended: that would wait for sockets which other threads may still use."""
    pid = os.getpid()
    if pid not in _contexts:
        _contexts[pid] = zmq.Context()
    return _contexts[pid]


def _is_readable(socket: "zmq.Socket[bytes]") -> bool:
    return bool(int(socket.get(zmq.EVENTS)) & zmq.POLLIN)


class ZmqEngineSocket:
    def __init__(self, address: str, keys: Keys | None = None) -> None:
        check_address(address, keys)
        self._socket = _shared_context().socket(zmq.DEALER)
        self._events: zmq.Socket[bytes] | None = None
        """Tells of the connection's beginning and end."""
        self._has_heard = False
        """Before the first word a connection may be tried more than once; after it, its end is the end."""
        self._backlog: Backlog | None = None
        """Of the connection; None: there is none."""
        self._read = Read()
        with _closed_if_it_fails(self):
            try:
                _configured(self._socket, _ENGINES_HEARTBEAT)
                self._socket.connect_timeout = _CONNECT_MS
                self._socket.reconnect_ivl_max = _LONGEST_RECONNECT_MS
                if keys is not None:
                    self._socket.curve_publickey, self._socket.curve_secretkey = keys.pair("engine")
                    self._socket.curve_serverkey = keys.public("draft")
                # It tells of a connection's end: of a draft's death too, which says nothing itself.
                self._events = self._socket.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)
                self._socket.connect(address)
                self._poller = zmq.Poller()
                self._poller.register(self._socket, zmq.POLLIN)
            except zmq.ZMQError as error:
                raise SocketError(f"no socket to {address}: {error}") from error

    def send(self, frame: bytes) -> None:
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise SocketError(f"the draft takes no more frames: {error}") from error

    def receive(self, timeout: float) -> bytes | None:
        try:
            if timeout > 0 and not self._is_over:
                self._poller.poll(int(timeout * 1000) or 1)
            frame = self._next()
            if frame is None and self._has_hung_up():
                # Its last words may come a moment behind the news of its end.
                self._socket.poll(1)
                frame = self._next()
                if frame is None:
                    raise SocketError("the draft has hung up")
            if frame is not None and not self._has_heard:
                self._has_heard = True
                self._take_events()
                self._poller.register(self._events, zmq.POLLIN)
            return frame
        except zmq.ZMQError as error:
            raise SocketError(str(error)) from error

    def _next(self) -> bytes | None:
        # Asking first is far faster than an exception.
        if not _is_readable(self._socket):
            return None
        frame = self._socket.recv(zmq.NOBLOCK)
        if self._socket.rcvmore:
            raise SocketError("the draft sends messages in parts, which no draft does")
        self._read.note(len(frame))
        return frame

    def _has_hung_up(self) -> bool:
        self._take_events()
        return self._is_over

    @property
    def _is_over(self) -> bool:
        return self._has_heard and self._backlog is None

    def _take_events(self) -> None:
        while self._events is not None and _is_readable(self._events):
            event = recv_monitor_message(self._events)
            is_there = event["event"] == zmq.EVENT_CONNECTED
            self._backlog = Backlog(int(event["value"]), time.monotonic()) if is_there else None

    def overfull(self) -> str:
        """Why the connection must end: the draft has sent far more than is read. Empty: it need not."""
        self._take_events()
        if self._backlog is None:
            return ""
        unread = self._backlog.unread(self._read, time.monotonic())
        if unread <= MOST_UNREAD:
            return ""
        shut(self._backlog.descriptor)
        return f"the draft has sent {unread} bytes that nobody reads"

    def close(self) -> None:
        """Does not wait for what is still to be sent; the context sends it in the background."""
        if not self._socket.closed:
            self._socket.disable_monitor()
            if self._events is not None:
                self._events.close()
            self._socket.close(linger=100)


class ZmqDraftSocket:
    def __init__(self, address: str, keys: Keys | None = None) -> None:
        check_address(address, keys)
        self._context = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        self._guard: ReadGuard | None = None
        self._names: dict[bytes, str] = {}
        with _closed_if_it_fails(self):
            self._socket = _configured(self._context.socket(zmq.ROUTER), _DRAFTS_HEARTBEAT)
            self._socket.router_mandatory = True
            if not address.startswith("ipc://"):
                self._guard = ReadGuard(self._socket, MOST_UNREAD)
            if keys is not None:
                self._authenticate(keys)
            try:
                self._socket.bind(address)
            except zmq.ZMQError as error:
                raise ValueError(
                    f"cannot listen on {address} ({error}): name another place or port"
                ) from error

    def _authenticate(self, keys: Keys) -> None:
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        keys.require_any()
        self._names = keys.names()
        self._authenticator.configure_curve_callback("*", _OnlyKnown(keys, self._names))
        self._socket.curve_publickey, self._socket.curve_secretkey = keys.pair("draft")
        self._socket.curve_server = True

    @property
    def endpoint(self) -> str:
        """Where it listens, with the port that the system chose where none was named."""
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def send(self, peer: bytes, frame: bytes) -> None:
        try:
            self._socket.send_multipart((peer, frame), zmq.NOBLOCK)
        except zmq.Again:
            return  # It does not read; it will find a frame missing and ask for the whole.
        except zmq.ZMQError as error:
            raise SocketError(f"the engine is gone: {error}") from error

    def receive(self, timeout: float) -> Heard | None:
        if timeout > 0 and not self._socket.poll(int(timeout * 1000) or 1):
            return None
        try:
            parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        if self._guard is not None:
            size = sum(len(each) for each in parts[1:])
            self._guard.note(parts[0].get(zmq.SRCFD), parts[0].bytes, size)
        # No engine sends a message in parts: as a frame it cannot be read.
        said = parts[1].bytes if len(parts) == 2 else b""
        return Heard(parts[0].bytes, said, self._key_of(parts[0]))

    def _key_of(self, part: zmq.Frame) -> str:
        """As the authenticator noted it when the line was made."""
        name = self._names[str(part.get("User-Id")).encode()] if self._names else ""
        return "" if name == _SHARED_KEY else name

    def close(self) -> None:
        if self._guard is not None:
            self._guard.close()
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=100)


@contextmanager
def _closed_if_it_fails(link: EngineSocket | DraftSocket) -> Iterator[None]:
    """Left to the garbage collector, a context may wait for ever for the socket that goes with it."""
    try:
        yield
    except BaseException:
        link.close()
        raise


class _OnlyKnown:
    """Accepts connections with the secret key of an engine that the draft knows.

    Reads the folder again when its files have changed. Connections that stand are not affected.
    """

    def __init__(self, keys: Keys, names: dict[bytes, str]) -> None:
        """`names`: gets the names of keys that are added; keeps those of keys that are removed, whose
        connections may still stand."""
        self._keys, self._names = keys, names
        self._accepted = set(names)
        self._read_at: list[tuple[str, int, int]] | None = None
        """The state in which all files could be read; None: the next connection reads them again."""

    def callback(self, domain: str, key: bytes) -> bool:
        self._read_again()
        return key in self._accepted

    def _read_again(self) -> None:
        """Called in the authenticator's thread, with each new connection.

        A key whose file is gone or cannot be read is not accepted; the others are.
        """
        try:
            state = self._keys.state()
        except OSError as error:  # An error that is not caught here would end the authenticator for good.
            logger.warning("the keys cannot be read again, so the ones before stay valid: %s", error)
            return
        if state == self._read_at:
            return
        names, is_whole = self._readable([name for name, *_times in state])
        self._names.update(names)
        self._accepted, self._read_at = set(names), state if is_whole else None
        logger.info("read the keys: %d are accepted", len(names))

    def _readable(self, files: Sequence[str]) -> tuple[dict[bytes, str], bool]:
        """Names by key, and whether no file failed in a way that may pass, such as too many open files."""
        names, is_whole = dict[bytes, str](), True
        for path in map(Path, files):
            try:
                names[self._keys.public(path.stem)] = path.stem
            except (OSError, ValueError) as error:
                logger.warning(
                    "the key %s is not accepted, since its file cannot be read: %s", path.name, error
                )
                is_whole = is_whole and not isinstance(error, OSError)
        return names, is_whole


def _configured(socket: "zmq.Socket[bytes]", heartbeat: tuple[int, int]) -> "zmq.Socket[bytes]":
    socket.linger = 0
    socket.sndhwm, socket.rcvhwm = _QUEUED_FRAMES, _UNREAD_FRAMES
    socket.rcvbuf = _KERNEL_BYTES
    socket.maxmsgsize = MAX_FRAME_BYTES + _ENCRYPTION_BYTES
    socket.heartbeat_ivl, socket.heartbeat_timeout = heartbeat
    return socket
