"""Prometheus metrics of requests: vLLM's names with the prefix `ssd_`, and some about speculation.

The engine's own metrics are in engine_metrics.py.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from ssd.engine.outputs import Increment, RequestOutput
from ssd.server.engine_metrics import EngineFigures
from ssd.worker.async_llm import AsyncLLM

_PATHS = (
    *("/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"),
    *("/version", "/health", "/livez", "/ready", "/metrics", "/"),
)
_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_WHOLE = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)
_LENGTHS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0)


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
            buckets=_LENGTHS,
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
