"""Messages between a server and its engine process: typed, checked on arrival.

A frame is a msgpack list of messages. Requests and outputs are sent as the dataclasses used everywhere
else; decoding runs their checks. Does not know sockets.

    client → worker   ADD, ABORT, SHUTDOWN; over a socket of its own PREPARE
    worker → client   READY or FAILED, INCREMENTS, FINISHED, REFUSED, PREPARED, HEARTBEAT

Every ADD is answered by one FINISHED or REFUSED, even if it is aborted; every PREPARE by one PREPARED.
"""

from collections.abc import Sequence

import msgspec

from ssd.engine.outputs import EngineStats, Increment, RequestOutput
from ssd.engine.request import Request
from ssd.sampling import Grammar


class WorkerMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Base class; a message is an array whose first entry is its tag."""


class Add(WorkerMessage, frozen=True, tag="add"):
    request: Request


class Abort(WorkerMessage, frozen=True, tag="abort"):
    """Ends a request. An unknown id is ignored: the request has just ended."""

    request_id: str


class Shutdown(WorkerMessage, frozen=True, tag="shutdown"):
    """Ends the engine and all its requests."""


class Prepare(WorkerMessage, frozen=True, tag="prepare"):
    """Compiles a grammar, before a request that needs it is added."""

    ticket: int
    grammar: Grammar
    asked_at: float
    """By time.monotonic(), which both processes share: requests whose caller timed out are skipped."""


class Ready(WorkerMessage, frozen=True, tag="ready"):
    """The model is loaded. Carries what the server needs to make requests."""

    model: str
    """Its folder or file: only the engine has resolved a name on the hub."""
    end_ids: tuple[int, ...]
    vocab_size: int
    max_model_len: int


class Failed(WorkerMessage, frozen=True, tag="failed"):
    """The engine has ended with an error: its last message."""

    reason: str
    is_refusal: bool = False
    """True: the settings cannot work, and the reason says what to change. False: a defect."""


class Increments(WorkerMessage, frozen=True, tag="increments"):
    increments: tuple[Increment, ...]


class Finished(WorkerMessage, frozen=True, tag="finished"):
    output: RequestOutput


class Refused(WorkerMessage, frozen=True, tag="refused"):
    """The request can never run, for the reason given."""

    request_id: str
    reason: str
    is_defect: bool = False
    """The request was valid: the reason is for the log, not for the caller."""


class Prepared(WorkerMessage, frozen=True, tag="prepared"):
    ticket: int
    refusal: str = ""
    """Why the grammar cannot be used; empty: it can."""
    is_final: bool = True
    """False: another attempt may succeed."""


class Heartbeat(WorkerMessage, frozen=True, tag="heartbeat"):
    """The process is alive; with the engine's progress and statistics."""

    seconds_without_progress: float
    """How long work has been waiting for the engine; 0 when idle."""
    num_running: int
    num_waiting: int
    kv_usage: float
    is_draft_ready: bool | None
    """None: the mode has no draft process."""
    stats: EngineStats


Command = Add | Abort | Shutdown
Event = Ready | Failed | Increments | Finished | Refused | Prepared | Heartbeat

_encoder = msgspec.msgpack.Encoder()
_command_decoder = msgspec.msgpack.Decoder(list[Command])
_prepare_decoder = msgspec.msgpack.Decoder(list[Prepare])
_event_decoder = msgspec.msgpack.Decoder(list[Event])


def encode(messages: Sequence[Command] | Sequence[Prepare] | Sequence[Event]) -> bytes:
    return _encoder.encode(list(messages))


def decode_commands(frame: bytes) -> list[Command]:
    return _command_decoder.decode(frame)


def decode_prepares(frame: bytes) -> list[Prepare]:
    return _prepare_decoder.decode(frame)


def decode_events(frame: bytes) -> list[Event]:
    return _event_decoder.decode(frame)
