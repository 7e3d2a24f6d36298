"""`ssd chat`: a conversation in the terminal, with an engine in this process or with a server."""

from functools import partial
from typing import Annotated, Any

import typer

from ssd.cli.chat_talk import Backend, Chat, ChatHistory, Screen
from ssd.cli.console import user_errors
from ssd.cli.engine_options import EngineOptions, SamplingOptions
from ssd.cli.options import with_options

_backend = partial(typer.Option, rich_help_panel="Engine or server")


@with_options
def chat(
    system: Annotated[str, typer.Option(help="System message.")] = "",
    metrics: Annotated[
        bool, typer.Option("--metrics", help="After each answer: tokens, speed, hits, accepted a round.")
    ] = False,
    color_origins: Annotated[
        bool,
        typer.Option("--color-origins", help="Colour each token by its origin; ssd only."),
    ] = False,
    ssd: Annotated[bool, _backend("--ssd", help="An engine in this process (the default).")] = False,
    vllm: Annotated[str | None, _backend(metavar="URL", help="Address of a running vLLM.")] = None,
    sglang: Annotated[str | None, _backend(metavar="URL", help="Address of a running SGLang.")] = None,
    url: Annotated[
        str | None,
        _backend(metavar="URL", help="A server with OpenAI's API, such as ssd serve."),
    ] = None,
    api_key: Annotated[str | None, _backend(envvar="SSD_API_KEY", help="API key for the server.")] = None,
    *,
    engine: EngineOptions,
    sampling: SamplingOptions,
) -> None:
    """Chat with a model. Greedy unless --temperature says otherwise.

    Examples:

        ssd chat Qwen/Qwen3-0.6B

        ssd chat MODEL --draft SMALL_MODEL --metrics --color-origins

        ssd chat --url http://localhost:8000 --temperature 0.7

    In the chat: /help, /reset, /system TEXT, /save FILE, /mode ar|sd|ssd, /quit. Ctrl-C ends an answer.
    """
    servers = {"vLLM": vllm, "SGLang": sglang, "the server": url}
    named = {name: place for name, place in servers.items() if place is not None}
    with user_errors():
        if len(named) + ssd > 1:
            raise ValueError("--ssd, --vllm, --sglang and --url exclude each other: name one")
        if not named:
            engine.require_models(mode_may_change=True)
        params = sampling.params(max_tokens=None)
        backend: Backend
        if named:
            backend = _remote(*named.popitem(), engine, api_key, params, wants_origins=color_origins)
        else:
            from ssd.cli.chat_local import LocalBackend

            backend = LocalBackend(engine.named_model, engine.settings(), params)
        try:
            Chat(backend, Screen(metrics=metrics, color_origins=color_origins), ChatHistory(system)).run()
        finally:
            backend.close()


def _remote(
    server: Any, url: str, engine: EngineOptions, api_key: str | None, params: Any, *, wants_origins: bool
) -> Backend:
    from ssd.cli.chat_remote import RemoteBackend

    # A mode that only follows from --draft was not given by the user.
    silent = {"hf_cache"} if "mode" in engine.given else {"hf_cache", "mode"}
    unheard = [name for name in engine.flags() if name not in silent]
    if unheard:
        flag = unheard[0].replace("_", "-")
        raise ValueError(f"--{flag} has no meaning with a server, which has its own settings: leave it out")
    model = engine.named_model if engine.model or engine.model_argument else None
    return RemoteBackend(
        server, url, model=model, api_key=api_key, params=params, wants_origins=wants_origins
    )
