"""Settings of the HTTP server."""

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
"""Upper bounds of the engine for the server's own limits."""
LOG_FORMAT_VARIABLE = "SSD_LOG_FORMAT"
"""Passes the log format on to child processes."""
_server = partial(Setting, group="Server")
_limit = partial(Setting, group="Limits of a request")
_seconds = partial(_limit, least=0.1, most=3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    host: Annotated[
        str,
        _server(
            "Address to listen on; 0.0.0.0: all.",
            remedy="use 127.0.0.1, or 0.0.0.0 to be reached from elsewhere",
        ),
    ] = "127.0.0.1"
    # Not SSD_PORT: Kubernetes sets that to an address where a service is called ssd.
    port: Annotated[
        int,
        _server("Port to listen on; 0 chooses a free one.", least=0, most=65535, variable="SSD_LISTEN_PORT"),
    ] = 8000
    api_keys: Annotated[
        tuple[str, ...],
        _server(
            "Key that clients must send; repeatable.",
            flags=("--api-key",),
            is_repeated=True,
            variable="SSD_API_KEY",
        ),
    ] = ()
    served_model_name: Annotated[str | None, _server("Name of the model in the API.")] = None
    drain_seconds: Annotated[
        float, _server("Seconds that running requests have to finish after SIGTERM.", least=0, most=86400)
    ] = 30.0
    stuck_seconds: Annotated[
        float, _server("Seconds without progress until /livez and /health return 503.", least=1, most=3600)
    ] = 8.0
    keep_alive_seconds: Annotated[
        float,
        _server("Seconds without an event until a stream sends a keep-alive comment.", least=0.1, most=3600),
    ] = 15.0
    log_level: Annotated[LogLevel, _server("Log level.")] = "info"
    log_format: Annotated[
        LogFormat,
        _server(
            "text or json; default: text on a terminal, else json.",
            variable=LOG_FORMAT_VARIABLE,
            tells_default=False,
        ),
    ] = "json"
    tool_format: Annotated[
        ToolFormat, _server("Format of the model's tool calls; auto: from its chat template.")
    ] = "auto"
    reasoning_format: Annotated[
        ReasoningFormat, _server("Format of the model's reasoning; auto: from its chat template.")
    ] = "auto"
    max_queue: Annotated[
        int, _limit("Most waiting sequences; further requests get 429.", least=0, most=1 << 20)
    ] = 256
    max_connections: Annotated[int, _limit("Most open connections.", least=1, most=1 << 16)] = 512
    max_body_bytes: Annotated[
        int, _limit("Largest request body in bytes; larger ones get 413.", least=1024, most=1 << 30)
    ] = 8 << 20
    max_prompts: Annotated[int, _limit("Most prompts of a completion request.", least=1, most=1 << 16)] = 64
    max_n: Annotated[int, _limit("Most answers to one prompt (n).", least=1, most=MAX_N)] = 16
    max_logprobs: Annotated[int, _limit("Most log-probabilities per token.", least=0, most=MAX_LOGPROBS)] = (
        MAX_LOGPROBS
    )
    max_stop: Annotated[int, _limit("Most stop strings.", least=0, most=MAX_STOP_STRINGS)] = MAX_STOP_STRINGS
    header_seconds: Annotated[float, _seconds("Seconds that a client has to send a request's headers.")] = (
        10.0
    )
    body_seconds: Annotated[float, _seconds("Seconds that a client has to send a request's body.")] = 30.0
    write_seconds: Annotated[
        float, _seconds("Seconds after which a client that does not read its answer is disconnected.")
    ] = 30.0

    def __post_init__(self) -> None:
        schema.check(self)
        if any(not key or not key.isascii() for key in self.api_keys):
            raise ValueError("an API key is empty or not ASCII: use letters, digits and dashes")
