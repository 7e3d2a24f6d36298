"""What a server and its engine process say to each other: typed, checked on arrival.

A frame is a msgpack list of messages. Requests and outputs travel as the dataclasses they are
everywhere else; their own checks run when they are decoded. Nothing here knows sockets.

    client → worker   ADD, ABORT, SHUTDOWN; over a link of its own PREPARE
    worker → client   READY or FAILED, INCREMENTS, FINISHED, REFUSED, PREPARED, HEARTBEAT

Every ADD is answered by one FINISHED or REFUSED, also when it was aborted; every PREPARE by one PREPARED.
"""

from collections.abc import Sequence

import msgspec

from ssd.engine.outputs import EngineStats, Increment, RequestOutput
from ssd.engine.request import Request
from ssd.sampling import Grammar


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The common root; a message is an array whose first entry is its tag."""


class Add(Message, frozen=True, tag="add"):
    request: Request


class Abort(Message, frozen=True, tag="abort"):
    """Ends a request; one that is unknown has just ended."""

    request_id: str


class Shutdown(Message, frozen=True, tag="shutdown"):
    """Ends the engine, and whatever still runs."""


class Prepare(Message, frozen=True, tag="prepare"):
    """Compiles a grammar, before a request that needs it is added."""

    ticket: int
    grammar: Grammar
    asked_at: float
    """By time.monotonic(), which both processes share: an answer that nobody waits for is not worked out."""


class Ready(Message, frozen=True, tag="ready"):
    """The model is loaded; with what is needed to make requests elsewhere."""

    model: str
    """Its folder or file: a name on the hub stands for a path that only the engine has looked up."""
    end_ids: tuple[int, ...]
    vocab_size: int
    max_model_len: int


class Failed(Message, frozen=True, tag="failed"):
    """The engine's last word."""

    reason: str
    is_refusal: bool = False
    """The settings cannot work, and the reason says what to change; otherwise it is a defect."""


class Increments(Message, frozen=True, tag="increments"):
    increments: tuple[Increment, ...]


class Finished(Message, frozen=True, tag="finished"):
    output: RequestOutput


class Refused(Message, frozen=True, tag="refused"):
    """The request can never run, for the reason given."""

    request_id: str
    reason: str
    is_defect: bool = False
    """It should have run: the reason is for the log."""


class Prepared(Message, frozen=True, tag="prepared"):
    ticket: int
    refusal: str = ""
    """Why the grammar cannot be used; empty: it can."""
    is_final: bool = True
    """False: not now, later it may be."""


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """The process lives; whether the engine in it moves, and what it has done."""

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
