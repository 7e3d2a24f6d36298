"""Prometheus metrics: vLLM's names with the prefix `ssd_`, and some about speculation.

Those of the engine are read from its last heartbeat: a scrape costs the engine nothing, and values are at
most one heartbeat old.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ssd.engine.outputs import Increment, RequestOutput
from ssd.worker.async_llm import AsyncLLM
from ssd.worker.messages import Heartbeat

_DRAFTED = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64)


class EngineFigures(Collector):
    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        silent = GaugeMetricFamily(
            "ssd_engine_seconds_without_progress",
            "Seconds since the engine last made progress on waiting work.",
        )
        silent.add_metric([], self._llm.seconds_without_progress)
        yield silent
        beat = self._llm.heartbeat
        if beat is not None:
            yield from _gauges(beat)
            yield from _totals(beat)
            yield _lengths(beat.stats.lengths)


def _gauges(beat: Heartbeat) -> Iterator[Metric]:
    yield GaugeMetricFamily("ssd_num_requests_running", "Sequences that are running.", beat.num_running)
    yield GaugeMetricFamily("ssd_num_requests_waiting", "Sequences that are waiting.", beat.num_waiting)
    yield GaugeMetricFamily("ssd_kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", beat.kv_usage)
    if beat.is_draft_ready is not None:
        yield GaugeMetricFamily("ssd_draft_up", "1 while a draft is connected.", int(beat.is_draft_ready))
    draft = beat.stats.draft
    if draft is not None:
        yield GaugeMetricFamily(
            "ssd_draft_resting",
            "1 while drafting is switched off because too few tokens were accepted.",
            int(draft.is_resting),
        )
        yield GaugeMetricFamily("ssd_drafts_ready", "Number of connected drafts.", draft.num_ready)
        tenant = GaugeMetricFamily(
            "ssd_draft_tenant", "1 for the tenant that this engine uses at its drafts.", labels=["tenant"]
        )
        tenant.add_metric([draft.tenant], 1)
        yield tenant
        yield GaugeMetricFamily(
            "ssd_draft_num_sequences", "Sequences that the draft speculates for.", draft.num_sequences
        )
        yield GaugeMetricFamily(
            "ssd_draft_kv_usage_perc", "Share of the draft's KV blocks in use, 0 to 1.", draft.kv_usage
        )


def _totals(beat: Heartbeat) -> Iterator[Metric]:
    stats, spec, draft = beat.stats, beat.stats.speculation, beat.stats.draft
    named: dict[str, tuple[str, float]] = {
        "rounds": ("Verifications of one sequence.", spec.rounds),
        "spec_decode_num_drafts": ("Verifications that had drafted tokens.", stats.num_drafts),
        "spec_decode_num_draft_tokens": ("Tokens drafted.", spec.drafted),
        "spec_decode_num_accepted_tokens": ("Drafted tokens accepted.", spec.accepted),
        "spec_hits": ("Rounds whose speculation was ready.", spec.hits),
        "engine_steps": ("Engine steps.", stats.num_steps),
        "engine_uncaptured_steps": ("Engine steps that ran without a captured graph.", stats.num_uncaptured),
        "engine_step_seconds": ("Seconds spent in engine steps.", stats.step_seconds),
        "verify_seconds": ("Seconds of engine steps spent in the target's forwards.", stats.verify_seconds),
        "wait_seconds": ("Seconds of engine steps spent waiting for the draft.", stats.wait_seconds),
        "host_seconds": ("Seconds of engine steps spent on the host.", max(0.0, stats.host_seconds)),
    }
    if draft is not None:
        named |= {
            "draft_steps": ("Draft steps.", draft.num_steps),
            "draft_seconds": ("Seconds spent in draft steps.", draft.draft_seconds),
            "draft_rows": ("Rows of draft steps that were for this tenant.", draft.num_own_rows),
            "draft_connects": ("Times a draft became ready, including the first time.", draft.num_connects),
            "draft_losses": ("Times the connection to a draft was lost.", draft.num_losses),
            "draft_resyncs": ("Times a draft sent a whole tree again.", draft.num_resyncs),
            "draft_declined": ("Sequences that a draft declined.", draft.num_declined),
            "draft_moved": ("Times a sequence moved from one draft to another.", draft.num_moved),
        }
    for name, (text, value) in named.items():
        yield CounterMetricFamily(f"ssd_{name}", text, value)
    misses = CounterMetricFamily("ssd_spec_misses", "Rounds without a ready speculation.", labels=["cause"])
    for cause in ("late", "unknown", "unheard"):
        misses.add_metric([cause], getattr(spec, cause))
    yield misses
    backups = CounterMetricFamily(
        "ssd_spec_backup_used", "Misses for which a backup provided drafted tokens.", labels=["backup"]
    )
    for backup in ("ngram", "jit"):
        backups.add_metric([backup], getattr(spec, backup))
    yield backups


def _lengths(rounds: dict[int, int]) -> Metric:
    """The engine counts rounds by length; a histogram's buckets are cumulative."""
    buckets = [(f"{most:.1f}", sum(n for length, n in rounds.items() if length <= most)) for most in _DRAFTED]
    return HistogramMetricFamily(
        "ssd_drafted_tokens_per_round",
        "Drafted tokens that one verification of one sequence checked.",
        buckets=[*buckets, ("+Inf", sum(rounds.values()))],
        sum_value=sum(length * n for length, n in rounds.items()),
    )


_PATHS = (
    *("/v1/models", "/v1/completions", "/v1/chat/completions"),
    *("/version", "/health", "/livez", "/ready", "/metrics", "/"),
)
_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_WHOLE = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)
_ACCEPTED = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0)


class Metrics:
    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.first_token = Histogram(
            "ssd_time_to_first_token_seconds",
            "Time from a request's arrival to its first token.",
            buckets=_FIRST_TOKEN,
            registry=registry,
        )
        self.per_token = Histogram(
            "ssd_time_per_output_token_seconds",
            "Mean time per token after the first one, of each request.",
            buckets=_PER_TOKEN,
            registry=registry,
        )
        self.whole = Histogram(
            "ssd_e2e_request_latency_seconds",
            "Time from a request's arrival to its last token.",
            buckets=_WHOLE,
            registry=registry,
        )
        self.queued = Histogram(
            "ssd_request_queue_time_seconds",
            "Time from a request's arrival in the engine to its first forward.",
            buckets=_FIRST_TOKEN,
            registry=registry,
        )
        self.accepted = Histogram(
            "ssd_accepted_tokens_per_round",
            "Drafted tokens accepted in one verification of one sequence.",
            buckets=_ACCEPTED,
            registry=registry,
        )
        self.prompt_tokens = _counter("prompt_tokens", "Prompt tokens of finished requests.", registry)
        self.generated_tokens = _counter("generation_tokens", "Tokens generated.", registry)
        self.succeeded = _counter(
            "request_success", "Sequences that ended, by reason.", registry, "finished_reason"
        )
        self.cancelled = _counter(
            "request_cancelled", "Requests that were cancelled by the client or failed.", registry
        )
        self.http = _counter("http_requests", "HTTP requests.", registry, "path", "status")
        self.at_position = _counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens by position in the speculation.",
            registry,
            "position",
        )
        self.by_origin = _counter(
            "output_tokens_by_origin",
            "Tokens by origin: a ready speculation (hit), one made after a miss (backup), or the target.",
            registry,
            "origin",
        )

    def watch(self, llm: AsyncLLM) -> None:
        """Add the engine's own metrics to the page."""
        self._registry.register(EngineFigures(llm))

    def note_increment(self, increment: Increment) -> None:
        """Count the tokens of one step of one sequence."""
        accepted = sum(origin != "target" for origin in increment.origins)
        if increment.token_ids:
            self.accepted.observe(accepted)
        self.generated_tokens.inc(len(increment.token_ids))
        for position in range(accepted):
            self.at_position.labels(str(position)).inc()
        for origin in increment.origins:
            self.by_origin.labels(origin).inc()

    def note_http(self, path: str, status: int) -> None:
        # Unknown paths share one label: clients could otherwise create any number of time series.
        self.http.labels(path if path in _PATHS else "other", str(status)).inc()

    def meter(self, num_prompt: int) -> "RequestMeter":
        return RequestMeter(self, num_prompt)

    def page(self) -> bytes:
        return generate_latest(self._registry)


class RequestMeter:
    """Observes the times of one request in the engine, however slowly the client reads."""

    def __init__(self, metrics: Metrics, num_prompt: int) -> None:
        self._metrics, self._num_prompt = metrics, num_prompt
        self._is_done = False

    def note(self, event: Increment | RequestOutput) -> None:
        if isinstance(event, Increment):
            return
        self._is_done = True
        metrics, timings = self._metrics, event.timings
        metrics.first_token.observe(timings.first_token)
        metrics.whole.observe(timings.total)
        metrics.queued.observe(timings.queued)
        metrics.prompt_tokens.inc(self._num_prompt)
        if timings.per_output_token is not None:
            metrics.per_token.observe(timings.per_output_token)
        for output in event.outputs:
            metrics.succeeded.labels(output.finish_reason).inc()

    def end(self) -> None:
        if not self._is_done:
            self._metrics.cancelled.inc()


def _counter(name: str, text: str, registry: CollectorRegistry, *labels: str) -> Counter:
    return Counter(f"ssd_{name}", text, labels, registry=registry)
