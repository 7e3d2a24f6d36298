"""`ssd serve`: OpenAI's API over HTTP, by our own engine or by vLLM.

The server is imported when the command runs.
"""

from dataclasses import replace
from importlib.util import find_spec
from typing import Annotated

import typer

from ssd.cli import serve_vllm
from ssd.cli.console import user_errors
from ssd.cli.engine_options import EngineOptions, ServerOptions, server_config
from ssd.cli.options import with_options
from ssd.cli.serve_vllm import VllmOptions, VllmServer
from ssd.cli.vllm_flags import refuse_taken_port
from ssd.config import EngineConfig
from ssd.config.server import ServerConfig
from ssd.version import how_to_install


@with_options
def serve(
    context: typer.Context,
    seed: Annotated[
        int | None, typer.Option(help="Base seed for requests that have none.", show_default=False)
    ] = None,
    *,
    engine: EngineOptions,
    server: ServerOptions,
    vllm: VllmOptions,
) -> None:
    """Serve a model over HTTP, as OpenAI's API does; a chat for the browser is at /.

    Examples:

        ssd serve Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B

        ssd serve MODEL --config server.yaml --port 8080 --api-key SECRET

        ssd serve MODEL --draft SMALL --engine vllm -- --gpu-memory-utilization 0.8
    """
    with user_errors():
        engine, flags = _apart(engine, context.args)
        # Before torch is imported, to choose the engine.
        if not vllm.print_commands:
            engine.require_names()
            refuse_taken_port(server, flags)
        if _is_for_vllm(engine, vllm):
            flags = [*([] if seed is None else ["--seed", str(seed)]), *flags]
            code = VllmServer(engine=engine, server=server, vllm=vllm, flags=flags).run()
        else:
            vllm.require_none()
            if flags:
                raise ValueError(
                    f"{flags[0]!r} is no argument of this command, and flags after `--` are vLLM's: leave "
                    "it out, or add --engine vllm"
                )
            engine.require_models()
            code = _serve_ourselves(engine.engine_config(seed=seed), server_config(server))
    raise typer.Exit(code)


def _apart(engine: EngineOptions, rest: list[str]) -> tuple[EngineOptions, list[str]]:
    """Separate vLLM's flags: with --model, the first one was parsed as the MODEL argument."""
    if engine.model_argument is not None and engine.model_argument.startswith("-"):
        return replace(engine, model_argument=None), [engine.model_argument, *rest]
    return engine, rest


def _is_for_vllm(engine: EngineOptions, vllm: VllmOptions) -> bool:
    if vllm.engine_name is not None:
        return vllm.engine_name == "vllm"
    if engine.given.get("device") == "cpu" or not serve_vllm.visible_gpus():
        return False
    reason = serve_vllm.why_unreadable(engine.named_model) or serve_vllm.why_missing()
    if reason:
        typer.echo(f"using our own engine, which has never run on a GPU; {reason}", err=True)
    return not reason


def _serve_ourselves(engine: EngineConfig, server: ServerConfig) -> int:
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise ValueError(f"the server's packages are not installed: {how_to_install('server')}")
    from ssd.server.run import run_server

    return run_server(engine, server)
