"""What a server can be told on the command line; one definition, whoever verifies."""

import os
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

_SERVER, _LIMITS = "Server", "Limits of a request"
_KEY = "SSD_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Settings of ServerConfig; None stands for its own default."""

    host: Annotated[
        str | None, typer.Option(rich_help_panel=_SERVER, help="0.0.0.0: reached from elsewhere too.")
    ] = None
    port: Annotated[int | None, typer.Option(rich_help_panel=_SERVER, help="8000; 0 takes a free one.")] = (
        None
    )
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar=_KEY, rich_help_panel=_SERVER, help="What clients send; repeatable."),
    ] = None
    served_model_name: Annotated[
        str | None, typer.Option(rich_help_panel=_SERVER, help="What clients call the model.")
    ] = None
    drain_seconds: Annotated[
        float | None, typer.Option(rich_help_panel=_SERVER, help="Time to finish after SIGTERM: 30.")
    ] = None
    stuck_seconds: Annotated[
        float | None,
        typer.Option(rich_help_panel=_SERVER, help="Of no progress, until /health says 503: 8."),
    ] = None
    log_level: Annotated[
        str | None, typer.Option(rich_help_panel=_SERVER, help="debug, info, warning or error.")
    ] = None
    otlp_endpoint: Annotated[
        str | None, typer.Option(rich_help_panel=_SERVER, help="Where traces go; needs the extra otel.")
    ] = None
    tool_format: Annotated[
        str | None, typer.Option(rich_help_panel=_SERVER, help="auto, hermes, llama3 or none.")
    ] = None
    reasoning_format: Annotated[
        str | None, typer.Option(rich_help_panel=_SERVER, help="auto, think or none.")
    ] = None
    max_queue: Annotated[
        int | None, typer.Option(rich_help_panel=_LIMITS, help="Sequences that may wait: 256; more get 429.")
    ] = None
    max_body_bytes: Annotated[
        int | None, typer.Option(rich_help_panel=_LIMITS, help="Of a request: 8 MiB.")
    ] = None
    max_n: Annotated[int | None, typer.Option(rich_help_panel=_LIMITS, help="Answers to one prompt: 16.")] = (
        None
    )

    def settings(self) -> dict[str, Any]:
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        said["api_keys"] = tuple(said.pop("api_key") or _none_meant())
        return {name: value for name, value in said.items() if value is not None}


def _none_meant() -> tuple[str, ...]:
    """No keys; a variable that is set to nothing was meant to be one, and would open the server to all."""
    if os.environ.get(_KEY) == "":
        raise ValueError(f"{_KEY} is set but empty: give it a key, or unset it to serve without one")
    return ()
