"""Settings of the server. Those of its engine are EngineConfig's."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from ssd.config import schema
from ssd.config.schema import Setting

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
ToolFormat = Literal["auto", "hermes", "llama3", "none"]
ReasoningFormat = Literal["auto", "think", "none"]
MAX_N = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
"""What an engine takes of a request at most, whatever a server allows."""
LOG_FORMAT_VARIABLE = "SSD_LOG_FORMAT"
"""Tells a process that another one starts how to log."""
_server = partial(Setting, group="Server")
_limit = partial(Setting, group="Limits of a request")
_seconds = partial(_limit, least=0.1, most=3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    host: Annotated[
        str,
        _server(
            "0.0.0.0: other machines too.",
            remedy="use 127.0.0.1, or 0.0.0.0 to be reached from elsewhere",
        ),
    ] = "127.0.0.1"
    # Not SSD_PORT: Kubernetes sets that to an address where a service is called ssd.
    port: Annotated[int, _server("0 takes a free one.", least=0, most=65535, variable="SSD_LISTEN_PORT")] = (
        8000
    )
    api_keys: Annotated[
        tuple[str, ...],
        _server(
            "What clients send; repeatable.", flags=("--api-key",), is_repeated=True, variable="SSD_API_KEY"
        ),
    ] = ()
    served_model_name: Annotated[str | None, _server("What clients call the model.")] = None
    drain_seconds: Annotated[float, _server("Seconds to finish after SIGTERM.", least=0, most=86400)] = 30.0
    stuck_seconds: Annotated[
        float, _server("Seconds without progress until /livez and /health say 503.", least=1, most=3600)
    ] = 8.0
    keep_alive_seconds: Annotated[
        float, _server("Seconds without an event until a stream sends a comment.", least=0.1, most=3600)
    ] = 15.0
    log_level: Annotated[LogLevel, _server("What is logged.")] = "info"
    log_format: Annotated[
        LogFormat,
        _server(
            "text or json; text where a terminal reads along.",
            variable=LOG_FORMAT_VARIABLE,
            tells_default=False,
        ),
    ] = "json"
    otlp_endpoint: Annotated[str | None, _server("Where traces go; needs the extra otel.")] = None
    tool_format: Annotated[
        ToolFormat, _server("How the model writes tool calls; auto reads its chat template.")
    ] = "auto"
    reasoning_format: Annotated[
        ReasoningFormat, _server("How the model marks its reasoning; auto reads its chat template.")
    ] = "auto"
    max_queue: Annotated[int, _limit("Sequences that may wait; more get 429.", least=0, most=1 << 20)] = 256
    max_connections: Annotated[int, _limit("Connections at a time.", least=1, most=1 << 16)] = 512
    max_body_bytes: Annotated[
        int, _limit("Bytes of a request; larger ones get 413.", least=1024, most=1 << 30)
    ] = 8 << 20
    max_prompts: Annotated[int, _limit("Prompts of a completion request.", least=1, most=1 << 16)] = 64
    max_n: Annotated[int, _limit("Answers to one prompt.", least=1, most=MAX_N)] = 16
    max_logprobs: Annotated[int, _limit("Log-probabilities of a token.", least=0, most=MAX_LOGPROBS)] = (
        MAX_LOGPROBS
    )
    max_stop: Annotated[int, _limit("Stop strings.", least=0, most=MAX_STOP_STRINGS)] = MAX_STOP_STRINGS
    header_seconds: Annotated[float, _seconds("Seconds until a request's headers are read.")] = 10.0
    body_seconds: Annotated[float, _seconds("Seconds after them until its body is read.")] = 30.0
    write_seconds: Annotated[float, _seconds("Seconds a client may take to read next to nothing.")] = 30.0

    def __post_init__(self) -> None:
        schema.check(self)
        if any(not key or not key.isascii() for key in self.api_keys):
            raise ValueError("an API key is empty or not ASCII: use letters, digits and dashes")
