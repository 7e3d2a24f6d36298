"""For each rule of docs/protocol.md, a side that breaks it: an honest one whose messages are changed.

A change gets the messages of a frame as maps, and may change, add or remove some. `sent` concerns what the
side at fault sends, `heard` what it hears.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from ssd.draft.protocol.messages import NodesHeads, OutcomeHeads

Maps = list[dict[str, Any]]
Change = Callable[[Maps], Maps]


def same(messages: Maps) -> Maps:
    return messages


@dataclass(frozen=True)
class WireFault:
    rule: int
    check: str
    """The method that exercises the rule."""
    sent: Change = same
    heard: Change = same
    shortened: int = 0
    """Bytes that are missing at the end of each frame that is sent."""

    def changed(self, frame: bytes, change: Change) -> bytes:
        """A frame that cannot be decoded stays as it is."""
        if change is same:
            return frame
        try:
            messages = msgspec.msgpack.decode(frame, type=list[dict[str, Any]])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return frame
        return msgspec.msgpack.encode(change(messages))


def each(kind: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Change:
    """Changes each message of a kind, or removes it."""

    def changed(messages: Maps) -> Maps:
        found = [change(dict(message)) if message["type"] == kind else message for message in messages]
        return [message for message in found if message is not None]

    return changed


def having(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda message: message | fields


def without(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda message: {name: value for name, value in message.items() if name not in names}


def removed(message: dict[str, Any]) -> None:
    return None


def where(condition: Callable[[dict[str, Any]], bool], **fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda message: message | fields if condition(message) else message


def columns(name: str, change: Callable[[Any], Any], heads: Sequence[str] = NodesHeads._fields) -> Any:
    """Changes a column of `heads`; the change gets it as an array."""

    def changed(message: dict[str, Any]) -> dict[str, Any]:
        table = np.frombuffer(message["heads"], "<i8").reshape(len(heads), -1).copy()
        place = list(heads).index(name)
        table[place] = change(table[place])
        return message | {"heads": table.tobytes()}

    return changed


def outcome(name: str, change: Callable[[Any], Any]) -> Any:
    return columns(name, change, OutcomeHeads._fields)


def packed(name: str, kind: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda message: (
        message | {name: change(np.frombuffer(message[name], kind).copy()).astype(kind).tobytes()}
    )


def added_to(kind: str, *more: dict[str, Any], before: bool = False) -> Change:
    def changed(messages: Maps) -> Maps:
        is_due = any(message["type"] == kind for message in messages)
        added = [*more] if is_due else []
        return [*added, *messages] if before else [*messages, *added]

    return changed


def siblings_alike(nodes: Any) -> Any:
    ids, parents, tokens = np.split(nodes, 3)
    return np.concatenate((ids, parents, 0 * tokens + 7))


STATS = {
    "type": "stats",
    "num_steps": 0,
    "num_rows": 0,
    "seconds": 0.0,
    "num_sequences": 0,
    "kv_usage": 0.0,
}
RESYNC = {"type": "resync", "seq": 99, "epoch": 1}

OF_DRAFTS = [
    WireFault(1, "missed_frames", shortened=1),
    WireFault(2, "answers", sent=each("stats", without("num_rows"))),
    WireFault(2, "greets", heard=lambda all_: [] if "added" in all_[0] else all_),
    WireFault(3, "greets", sent=added_to("hello", STATS, before=True)),
    WireFault(4, "greets", sent=each("hello", without("refusal"))),
    WireFault(5, "greets", heard=each("hello", having(tokenizer="a rule"))),
    WireFault(8, "missed_frames", sent=each("nodes", packed("nodes", "<i4", lambda nodes: nodes + 400))),
    WireFault(
        9, "outcomes_out_of_turn", heard=each("open", where(lambda open_: open_["epoch"] == 4, epoch=7))
    ),
    WireFault(10, "sequences_apart", heard=each("open", where(lambda open_: True, num_prompt=1))),
    WireFault(11, "sequences_apart", sent=each("close", having(may_return=True))),
    WireFault(
        12,
        "sequences_apart",
        heard=each("open", lambda open_: open_ | {"sampling": without("noise")(open_["sampling"])}),
    ),
    WireFault(13, "asks", sent=each("close", without("may_return"))),
    WireFault(14, "sequences_apart", heard=each("close", having(seq=99))),
    WireFault(15, "asks", heard=each("ask", removed)),
    WireFault(16, "asks", sent=each("stats", having(drains=True))),
    WireFault(
        19, "outcomes_out_of_turn", heard=each("outcome", outcome("n", lambda n: np.where(n == 9, 1, n)))
    ),
    WireFault(
        21,
        "sequences_apart",
        heard=each("outcome", packed("tokens", "<i4", lambda tokens: tokens.clip(0, 399))),
    ),
    WireFault(22, "missed_frames", sent=each("nodes", columns("number", lambda number: number + 1))),
    WireFault(23, "missed_frames", sent=each("nodes", columns("length", lambda length: length + 1))),
    WireFault(24, "numbers_and_trees", sent=each("nodes", columns("root", lambda root: 0 * root))),
    WireFault(25, "missed_frames", sent=each("nodes", packed("nodes", "<i4", siblings_alike))),
    WireFault(26, "missed_frames", sent=each("nodes", packed("logprobs", "<f4", lambda values: 1 - values))),
    WireFault(27, "numbers_and_trees", heard=each("open", having(max_len=1 << 14))),
    WireFault(28, "credit", heard=each("outcome", outcome("num_frames", lambda count: count + 1000))),
    WireFault(30, "missed_frames", heard=each("resync", removed)),
    WireFault(32, "answers", sent=each("stats", removed)),
    WireFault(31, "sequences_apart", sent=each("resync", removed)),
    WireFault(31, "outcomes_out_of_turn", sent=each("resync", having(epoch=5))),
    WireFault(
        33, "credit", sent=each("stats", lambda stats: stats | {"num_steps": 10**6 - stats["num_steps"]})
    ),
]
"""R7: see the test with a draft that does not forget. R34: with one that lets in every key."""

OF_TARGETS = [
    WireFault(1, "counts_frames", shortened=1),
    WireFault(2, "counts_frames", sent=each("outcome", without("tokens"))),
    WireFault(3, "greets", sent=added_to("hello", RESYNC)),
    WireFault(4, "greets", heard=each("hello", removed)),
    WireFault(6, "is_refused", heard=each("hello", without("refusal"))),
    WireFault(8, "fits_into_the_draft", heard=each("hello", having(vocab_size=400))),
    WireFault(9, "sends_the_text_again", sent=each("open", having(epoch=1))),
    WireFault(10, "greets", sent=each("open", having(lookahead=0))),
    WireFault(11, "fits_into_the_draft", heard=each("hello", without("max_model_len"))),
    WireFault(14, "is_declined", heard=each("close", removed)),
    WireFault(17, "counts_frames", sent=each("outcome", outcome("n", lambda n: n + 1))),
    WireFault(18, "counts_frames", sent=each("outcome", outcome("num_frames", lambda count: count + 9))),
    WireFault(20, "sends_the_text_again", heard=each("resync", removed)),
    WireFault(29, "misses_a_frame", sent=each("resync", removed)),
]
"""R7: see the test with a target that does not hear that it is forgotten."""
