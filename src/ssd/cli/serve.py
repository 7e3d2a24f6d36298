"""`ssd serve`: OpenAI's API over HTTP. The server is imported when the command runs."""

from importlib.util import find_spec
from typing import Annotated

import typer

from ssd.cli.errors import user_errors
from ssd.cli.generate import MODEL_HELP
from ssd.config import EngineConfig


def serve(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    draft: Annotated[str | None, typer.Option(help="Draft model, with the model's tokenizer.")] = None,
    mode: Annotated[str | None, typer.Option(help="ar, sd or ssd; ssd if there is a draft.")] = None,
    host: Annotated[str, typer.Option(help="0.0.0.0 to be reached from other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    api_key: Annotated[
        list[str] | None, typer.Option(envvar="SSD_API_KEY", help="Key that clients send; repeatable.")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that run at a time.")] = 64,
    max_model_len: Annotated[int | None, typer.Option(help="Longest prompt plus output.")] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Bitwise the same whatever runs beside it.")
    ] = False,
    served_model_name: Annotated[str | None, typer.Option(help="What clients call the model.")] = None,
    max_queue: Annotated[int, typer.Option(help="Sequences that may wait; more get 429.")] = 256,
    drain_seconds: Annotated[float, typer.Option(help="Time to finish after SIGTERM.")] = 30.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    otlp_endpoint: Annotated[str | None, typer.Option(help="Where traces go; needs ssd[otel].")] = None,
) -> None:
    """Serve a model over HTTP, as OpenAI's API does."""
    with user_errors():
        if find_spec("fastapi") is None or find_spec("uvicorn") is None:
            raise ValueError("the server's packages are not installed: pip install 'ssd[server]'")
        from ssd.server.config import ServerConfig
        from ssd.server.run import run_server

        engine = EngineConfig(
            model=model,
            draft=draft,
            mode=mode or ("ssd" if draft else "ar"),  # type: ignore[arg-type]  # checked by the settings
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            deterministic=deterministic,
        )
        server = ServerConfig(
            host=host,
            port=port,
            api_keys=tuple(api_key or ()),
            served_model_name=served_model_name,
            max_queue=max_queue,
            drain_seconds=drain_seconds,
            log_level=log_level,  # type: ignore[arg-type]
            otlp_endpoint=otlp_endpoint,
        )
        code = run_server(engine, server)
    raise typer.Exit(code)
