"""What the worker counts, by the names of our own server's metrics, for Prometheus and for a report.

A worker is a process of its own: its figures reach vLLM's /metrics only through the files that
prometheus_client writes where PROMETHEUS_MULTIPROC_DIR was set before the start. Without prometheus_client
the counts are kept all the same.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

COUNTERS: Mapping[str, tuple[str, str]] = {
    "rounds": ("Verifications that decided tokens, of one sequence each.", ""),
    "spec_hits": ("Rounds whose speculation was ready.", ""),
    "spec_misses": ("Rounds without a ready speculation.", "cause"),
    "spec_decode_num_draft_tokens": ("Tokens proposed and verified, by who guessed them.", "source"),
    "spec_decode_num_accepted_tokens": ("Of these, accepted.", "source"),
    "spec_padding_tokens": ("Tokens that only made proposals equally long.", ""),
    "spec_sessions_opened": ("Requests the draft was told of.", ""),
    "spec_sessions_reopened": ("Of these, live ones that came again as new.", ""),
    "spec_declined": ("Requests that run without a draft, by reason.", "reason"),
    "draft_rows": ("Rows of draft steps, for this tenant.", ""),
    "drafting_errors": ("Errors of the worker's own drafting; each pauses it for a while.", ""),
    "wait_seconds": ("Seconds spent waiting for the draft.", ""),
    "host_seconds": ("Seconds of the worker's own work, by what for.", "part"),
}
NAMES: Mapping[str, tuple[str, str]] = {
    "draft_tenant": ("1: whose share of drafts this is.", "tenant"),
}
"""Gauges that are 1 at the name that holds, and 0 at those that did."""
GAUGES: Mapping[str, str] = {
    "spec_sessions": "Requests that are session now.",
    "draft_up": "1 while the draft is there.",
    "drafting_paused": "1 while drafting pauses after an error.",
    "draft_resting": "1 while the draft rests: hardly any of its tokens was accepted.",
    "draft_connects": "Times the draft became ready.",
    "draft_losses": "Times the draft was lost.",
    "draft_declined": "Sequences the draft declined.",
    "drafts_ready": "Drafts that are there.",
    "draft_moved": "Times a sequence went from one draft to another.",
    "draft_resyncs": "Times a tree was sent again.",
    "draft_frames": "Messages of the draft that brought nodes.",
    "draft_step_seconds": "Of the draft's latest steps, one.",
}


class Meter:
    def __init__(self, *, exported: bool = True) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """By name and label."""
        self.gauges: dict[str, float] = dict.fromkeys(GAUGES, 0.0)
        self.names: dict[str, str] = {}
        self._counters, self._gauges, self._names = _exported() if exported else ({}, {}, {})

    def add(self, name: str, label: str = "", amount: float = 1) -> None:
        self.counts[name, label] += amount  # type: ignore[assignment]  # seconds are counted too
        counter = self._counters.get(name)
        if counter is not None:
            (counter.labels(label) if label else counter).inc(amount)

    def show(self, **values: float) -> None:
        for name, value in values.items():
            if self.gauges[name] != value:
                self.gauges[name] = value
                if name in self._gauges:
                    self._gauges[name].set(value)

    def name(self, **names: str) -> None:
        """Which name holds from here on."""
        for name, label in names.items():
            before, self.names[name] = self.names.get(name), label
            if name in self._names and before != label:
                self._names[name].labels(label).set(1)
                if before is not None:
                    self._names[name].labels(before).set(0)

    def report(self) -> dict[str, float]:
        """Everything, as `name` or `name.label`."""
        counted = {
            f"{name}.{label}" if label else name: count for (name, label), count in self.counts.items()
        }
        return {
            **dict.fromkeys((name for name, (_, label) in COUNTERS.items() if not label), 0),
            **counted,
        } | (self.gauges)


def _exported() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    try:
        from prometheus_client import Counter as Exported
        from prometheus_client import Gauge
    except ImportError:
        return {}, {}, {}
    try:
        counters = {
            name: Exported(f"ssd_{name}", text, [label] if label else [])
            for name, (text, label) in COUNTERS.items()
        }
        gauges = {
            name: Gauge(f"ssd_{name}", text, multiprocess_mode="livemostrecent")
            for name, text in GAUGES.items()
        }
        names = {
            name: Gauge(f"ssd_{name}", text, [label], multiprocess_mode="livemostrecent")
            for name, (text, label) in NAMES.items()
        }
    except ValueError:
        # Another worker of this process has them already.
        return {}, {}, {}
    return counters, gauges, names
