"""Records when target, host and draft compute, and writes a Chrome trace (chrome://tracing, ui.perfetto.dev).

Knows time spans on named tracks. All use the machine's monotonic clock, which a draft process on the same
machine shares.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd.decoding.rows import DraftStep, StepTimes, VerifiedTree
from ssd.decoding.tree_lines import TextOf, lines_of

_TRACKS = {"target": 1, "host": 2, "draft": 3}


@dataclass(frozen=True, slots=True)
class _Span:
    track: str
    name: str
    started: float
    ended: float
    details: dict[str, Any]
    trees: tuple[VerifiedTree, ...] = ()


class Timeline:
    def __init__(self) -> None:
        self._spans: list[_Span] = []

    def add_step(self, started: float, ended: float, times: StepTimes, draft_steps: list[DraftStep]) -> None:
        """Adds one step of the engine: host work, waiting, verification, and the draft's steps."""
        verify_ended = times.verify_started + times.verify
        prepared = times.verify_started - times.wait
        self._add("host", "prepare", started, prepared)
        if times.wait:
            self._add("host", "wait for the draft", prepared, times.verify_started)
        counts = {
            "rows": times.num_rows,
            "sequences": times.num_sequences,
            "speculated": times.num_speculated,
            "ready": times.num_ready,
            "waited_ms": round(times.wait * 1e3, 3),
        }
        self._add("target", "verify", times.verify_started, verify_ended, times.trees, **counts)
        self._add("host", "commit", verify_ended, ended)
        for step in draft_steps:
            self._add("draft", "draft step", step.started, step.ended, rows=step.num_rows)

    def write(self, path: Path, text_of: TextOf = str) -> None:
        """Writes the trace. `text_of` gives the text of a token in drawn trees; default: its id."""
        origin = min((span.started for span in self._spans), default=0.0)
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": track}}
            for track, number in _TRACKS.items()
        ]
        events += [
            {
                "ph": "X",
                "pid": 1,
                "tid": _TRACKS[span.track],
                "name": span.name,
                "ts": round((span.started - origin) * 1e6, 1),
                "dur": round((span.ended - span.started) * 1e6, 1),
                "args": {**span.details, **_drawn(span.trees, text_of)},
            }
            for span in self._spans
        ]
        path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))

    def _add(
        self,
        track: str,
        name: str,
        started: float,
        ended: float,
        trees: tuple[VerifiedTree, ...] = (),
        **details: Any,
    ) -> None:
        if ended > started:
            self._spans.append(_Span(track, name, started, ended, details, trees))


def _drawn(trees: tuple[VerifiedTree, ...], text_of: TextOf) -> dict[str, list[str]]:
    """Each tree by its number, as lines; ● marks accepted nodes."""
    return {
        f"tree {number}": [str(line) for line in lines_of(tree, text_of)]
        for number, tree in enumerate(trees, 1)
    }
