"""Metrics of the worker, named as those of our own server, for Prometheus and for a report.

The worker is a separate process: its metrics reach vLLM's /metrics through files of prometheus_client, if
PROMETHEUS_MULTIPROC_DIR was set before the start. Without prometheus_client, only the report has them.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

COUNTERS: Mapping[str, tuple[str, str]] = {
    "rounds": ("Verifications of one sequence.", ""),
    "spec_hits": ("Rounds whose speculation was ready.", ""),
    "spec_misses": ("Rounds without a ready speculation.", "cause"),
    "spec_decode_num_draft_tokens": ("Drafted tokens that were verified, by source.", "source"),
    "spec_decode_num_accepted_tokens": ("Drafted tokens that were accepted, by source.", "source"),
    "spec_padding_tokens": ("Padding tokens in proposals.", ""),
    "spec_sessions_opened": ("Requests that were opened at the draft.", ""),
    "spec_sessions_reopened": ("Running requests that were opened again.", ""),
    "spec_declined": ("Requests that run without a draft, by reason.", "reason"),
    "draft_rows": ("Rows of draft steps that were for this tenant.", ""),
    "drafting_errors": ("Errors in the worker's drafting; each one pauses drafting.", ""),
    "wait_seconds": ("Seconds spent waiting for the draft.", ""),
    "host_seconds": ("Seconds of the worker's host work, by part.", "part"),
}
NAMES: Mapping[str, tuple[str, str]] = {
    "draft_tenant": ("1 for the tenant that this engine uses at its drafts.", "tenant"),
}
"""Gauges that are 1 for the current label and 0 for earlier ones."""
GAUGES: Mapping[str, str] = {
    "spec_sessions": "Running requests that are open at the draft.",
    "draft_up": "1 while a draft is connected.",
    "drafting_paused": "1 while drafting is paused after an error.",
    "draft_resting": "1 while drafting is switched off because too few tokens were accepted.",
    "draft_connects": "Times a draft became ready.",
    "draft_losses": "Times the connection to a draft was lost.",
    "draft_declined": "Sequences that a draft declined.",
    "drafts_ready": "Number of connected drafts.",
    "draft_moved": "Times a sequence moved from one draft to another.",
    "draft_resyncs": "Times a draft sent a whole tree again.",
    "draft_frames": "Messages of the draft with new tree nodes.",
    "draft_step_seconds": "Duration of a recent draft step in seconds.",
}


class Meter:
    def __init__(self, *, exported: bool = True) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """By name and label."""
        self.gauges: dict[str, float] = dict.fromkeys(GAUGES, 0.0)
        self.names: dict[str, str] = {}
        self._counters, self._gauges, self._names = _exported() if exported else ({}, {}, {})
        self._labelled: dict[tuple[str, str], Any] = {}
        """Exported counters by name and label."""

    def add(self, name: str, label: str = "", amount: float = 1) -> None:
        key = name, label
        self.counts[key] += amount  # type: ignore[assignment]  # seconds are counted too
        if name in self._counters:
            if key not in self._labelled:
                counter = self._counters[name]
                self._labelled[key] = counter.labels(label) if label else counter
            self._labelled[key].inc(amount)

    def show(self, **values: float) -> None:
        for name, value in values.items():
            if self.gauges[name] != value:
                self.gauges[name] = value
                if name in self._gauges:
                    self._gauges[name].set(value)

    def name(self, **names: str) -> None:
        """Set the current label of name gauges."""
        for name, label in names.items():
            before, self.names[name] = self.names.get(name), label
            if name in self._names and before != label:
                self._names[name].labels(label).set(1)
                if before is not None:
                    self._names[name].labels(before).set(0)

    def report(self) -> dict[str, float]:
        """All values by `name` or `name.label`."""
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
        # Another worker in this process has registered them already.
        return {}, {}, {}
    return counters, gauges, names
