"""Options that several commands share: those of the engine and its draft, of sampling, of the server.

The settings of EngineConfig, DraftConfig and ServerConfig, and options that exist only on the command line.
"""

import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssd.cli.config_file import ConfigFile, SpeculativeConfig
from ssd.cli.options import GivenSettings, SettingsOf, option_name
from ssd.config import DraftConfig, EngineConfig
from ssd.config.schema import fields_of
from ssd.config.server import ServerConfig
from ssd.models.names import path_or_hub_name
from ssd.processes.logs import usual_format

if TYPE_CHECKING:
    from ssd.sampling import SamplingParams

_sampling = partial(typer.Option, rich_help_panel="Sampling")
MODEL_HELP = fields_of(EngineConfig)["model"].about.help


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of all commands with an engine: generate, chat, serve and bench."""

    model_argument: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)
    ] = None
    model: Annotated[str | None, typer.Option("--model", "-m", help="The model, as an option.")] = None
    config: ConfigFile = None
    given: Annotated[GivenSettings, SettingsOf(EngineConfig, without=("model", "draft", "seed"))] = field(
        default_factory=dict
    )
    draft: Annotated[GivenSettings, SettingsOf(DraftConfig, owner="draft")] = field(default_factory=dict)
    speculative_config: SpeculativeConfig = None
    tensor_parallel_size: Annotated[
        int,
        typer.Option(
            "--tensor-parallel-size",
            "-tp",
            rich_help_panel="Machine and numbers",
            help="Only with --engine vllm.",
        ),
    ] = 1

    @property
    def named_model(self) -> str:
        if self.model and self.model_argument and self.model != self.model_argument:
            raise ValueError(f"two models, {self.model_argument} and {self.model}: name one")
        named = self.model_argument or self.model
        if not named:
            raise ValueError(f"no model is named. {MODEL_HELP}")
        return named

    @property
    def named_draft(self) -> str | None:
        """The draft's model or address."""
        return self.draft.get("model")

    def require_models(self, *, mode_may_change: bool = False) -> None:
        """Raise ValueError for models and settings that cannot work, before anything heavy is imported.

        `mode_may_change`: a draft that is given is used later, whatever the mode is now.
        """
        self.require_names()
        from ssd.models.first_look import first_look

        mode = {"mode": "ssd"} if mode_may_change and self.named_draft else {}
        first_look(self.engine_config(**mode))

    def require_names(self) -> None:
        """Raise ValueError if a model is neither a path of this machine nor a name on the hub."""
        for model in (self.named_model, self.named_draft):
            if model is not None and "://" not in model:
                path_or_hub_name(model)

    def settings(self, *, for_vllm: bool = False) -> dict[str, Any]:
        """The given options as settings of EngineConfig. A draft without a mode means mode ssd."""
        if self.tensor_parallel_size != 1 and not for_vllm:
            raise ValueError(
                f"--tensor-parallel-size {self.tensor_parallel_size}: our own target runs on one device so "
                "far; leave it at 1, or use `ssd serve --engine vllm`"
            )
        mode = {"mode": "ssd"} if self.draft.get("model") else {}
        draft = {"draft": dict(self.draft)} if self.draft else {}
        return {**mode, **self.given, **draft}

    def flags(self) -> dict[str, Any]:
        """The same as a flat dictionary by flag name."""
        settings = self.settings()
        draft = settings.pop("draft", {})
        return settings | {option_name("draft", name): value for name, value in draft.items()}

    def engine_config(self, **more: Any) -> EngineConfig:
        """The config; `more` are settings from a command's own flags."""
        return EngineConfig.from_settings(self.named_model, {**self.settings(), **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Sampling flags of `ssd generate` and `ssd chat`."""

    max_tokens: Annotated[
        int | None, _sampling(min=1, help="Most tokens; default 128, in a chat no limit.")
    ] = None
    temperature: Annotated[float, _sampling(min=0, max=1000, help="0 is greedy.")] = 0.0
    top_p: Annotated[float, _sampling(min=0, max=1, help="Keep the likeliest tokens of this mass.")] = 1.0
    top_k: Annotated[int, _sampling(min=-1, help="Keep this many likeliest tokens; 0 keeps all.")] = 0
    min_p: Annotated[
        float,
        _sampling(
            min=0, max=1, help="Keep tokens with at least this share of the likeliest one's probability."
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float, _sampling(min=0.01, max=100, help="Above 1 discourages repetition.")
    ] = 1.0
    seed: Annotated[int | None, _sampling(help="Seed, to repeat a sampled answer.")] = None
    stop: Annotated[list[str] | None, _sampling(help="Stop string; repeatable.")] = None
    ignore_eos: Annotated[bool, _sampling("--ignore-eos", help="Continue after the end token.")] = False

    def params(self, *, max_tokens: int | None, n: int = 1, logprobs: int | None = None) -> "SamplingParams":
        """`max_tokens` is the default if the user gave none."""
        from ssd.sampling import SamplingParams

        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            n=n,
            stop=self.stop or (),
            ignore_eos=self.ignore_eos,
            max_tokens=max_tokens if self.max_tokens is None else self.max_tokens,
            logprobs=logprobs,
        )


ServerOptions = Annotated[GivenSettings, SettingsOf(ServerConfig)]


def server_config(given: GivenSettings) -> ServerConfig:
    """The server's config. Raises ValueError if SSD_API_KEY is set but empty: the server would be open."""
    variable = fields_of(ServerConfig)["api_keys"].about.variable
    if variable is not None and not given.get("api_keys") and os.environ.get(variable) == "":
        raise ValueError(f"{variable} is set but empty: give it a key, or unset it to serve without one")
    return ServerConfig(**{"log_format": usual_format(), **given})
