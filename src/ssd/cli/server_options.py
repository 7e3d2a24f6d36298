"""What a server can be told on the command line; one definition, whoever verifies."""

import os
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ssd.cli.options import said_in
from ssd.processes.logs import VARIABLE, LogFormat, checked_format

_SERVER, _LIMITS = "Server", "Limits of a request"
_KEY = "SSD_API_KEY"


def _option(help_text: str, panel: str, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, rich_help_panel=panel, help=help_text, show_default=False, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Settings of ServerConfig; None stands for its own default."""

    host: Annotated[str | None, _option("0.0.0.0: reached from elsewhere too.", _SERVER)] = None
    # Not SSD_PORT: Kubernetes sets that to an address where a service is called ssd.
    port: Annotated[int | None, _option("8000; 0 takes a free one.", _SERVER, envvar="SSD_LISTEN_PORT")] = (
        None
    )
    api_keys: Annotated[
        list[str] | None,
        _option("What clients send; repeatable.", _SERVER, "--api-key", envvar=_KEY),
    ] = None
    served_model_name: Annotated[str | None, _option("What clients call the model.", _SERVER)] = None
    drain_seconds: Annotated[float | None, _option("Time to finish after SIGTERM: 30.", _SERVER)] = None
    stuck_seconds: Annotated[float | None, _option("Of no progress, until /health says 503: 8.", _SERVER)] = (
        None
    )
    keep_alive_seconds: Annotated[
        float | None, _option("Without an event, until a stream sends a comment: 15.", _SERVER)
    ] = None
    log_level: Annotated[str | None, _option("debug, info, warning or error.", _SERVER)] = None
    log_format: Annotated[
        LogFormat | None,
        _option("text or json; text where a terminal reads along.", _SERVER, envvar=VARIABLE),
    ] = None
    otlp_endpoint: Annotated[str | None, _option("Where traces go; needs the extra otel.", _SERVER)] = None
    tool_format: Annotated[str | None, _option("auto, hermes, llama3 or none.", _SERVER)] = None
    reasoning_format: Annotated[str | None, _option("auto, think or none.", _SERVER)] = None
    max_queue: Annotated[int | None, _option("Sequences that may wait: 256; more get 429.", _LIMITS)] = None
    max_connections: Annotated[int | None, _option("At a time: 512.", _LIMITS)] = None
    max_body_bytes: Annotated[int | None, _option("Of a request: 8 MiB.", _LIMITS)] = None
    max_prompts: Annotated[int | None, _option("Prompts of a completion request: 64.", _LIMITS)] = None
    max_n: Annotated[int | None, _option("Answers to one prompt: 16.", _LIMITS)] = None
    max_logprobs: Annotated[int | None, _option("Log-probabilities of a token: 20.", _LIMITS)] = None
    max_stop: Annotated[int | None, _option("Stop strings: 16.", _LIMITS)] = None
    header_seconds: Annotated[float | None, _option("Until its headers are read: 10.", _LIMITS)] = None
    body_seconds: Annotated[float | None, _option("And then its body: 30.", _LIMITS)] = None
    write_seconds: Annotated[
        float | None, _option("A client may take to read next to nothing: 30.", _LIMITS)
    ] = None

    def settings(self) -> dict[str, Any]:
        keys = tuple(self.api_keys or _none_meant())
        return said_in(self) | {"api_keys": keys, "log_format": checked_format(self.log_format)}


def _none_meant() -> tuple[str, ...]:
    """No keys; a variable that is set to nothing was meant to be one, and would open the server to all."""
    if os.environ.get(_KEY) == "":
        raise ValueError(f"{_KEY} is set but empty: give it a key, or unset it to serve without one")
    return ()
