"""OpenTelemetry traces: one span per request with its token counts. Off unless an endpoint is given.

The SDK comes with the extra `otel` and is imported only if traces are on.
"""

from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ssd.version import __version__, how_to_install

_PATH = "/v1/traces"
_ATTRIBUTES = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "finish_reasons": "gen_ai.response.finish_reasons",
    "rounds": "ssd.speculation.rounds",
    "accepted_tokens": "ssd.speculation.accepted_tokens",
}


class Traces:
    """Creates spans and exports them."""

    def __init__(self, endpoint: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise ValueError(f"traces need more packages: {how_to_install('otel')}") from error
        url = endpoint if endpoint.endswith(_PATH) else endpoint.rstrip("/") + _PATH
        resource = Resource.create({"service.name": "ssd", "service.version": __version__})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self.tracer = self._provider.get_tracer("ssd.server")

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()


class Traced:
    """Middleware that makes a span for each HTTP request and continues the client's trace."""

    def __init__(self, app: ASGIApp, traces: Traces) -> None:
        self._app, self._traces = app, traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(dict(Headers(scope=scope)))
        name = f"{scope['method']} {scope['path']}"
        tracer = self._traces.tracer
        with tracer.start_as_current_span(name, context=parent, kind=SpanKind.SERVER) as span:

            async def send_noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            try:
                await self._app(scope, receive, send_noting)
            finally:
                span.set_attributes(_attributes(scope["state"]))


def _attributes(state: dict[str, Any]) -> dict[str, Any]:
    fields = state.get("fields", {})
    found = {_ATTRIBUTES[name]: value for name, value in fields.items() if name in _ATTRIBUTES}
    return {"ssd.request_id": state["request_id"], **found}
