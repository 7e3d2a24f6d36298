"""Options that all commands with an engine share: generate, chat, serve, tune and bench.

The settings of EngineConfig and DraftConfig, and options that exist only on the command line.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from ssd.cli.config_file import ConfigFile, SpeculativeConfig
from ssd.cli.options import Said, SettingsOf, option_name
from ssd.config import DraftConfig, EngineConfig
from ssd.config.schema import fields_of
from ssd.models.names import path_or_hub_name

MODEL_HELP = fields_of(EngineConfig)["model"].about.help


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    model_argument: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)
    ] = None
    model: Annotated[str | None, typer.Option("--model", "-m", help="The same, as an option.")] = None
    config: ConfigFile = None
    said: Annotated[Said, SettingsOf(EngineConfig, without=("model", "draft", "seed"))] = field(
        default_factory=dict
    )
    draft: Annotated[Said, SettingsOf(DraftConfig, owner="draft")] = field(default_factory=dict)
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

    def require_models(self) -> None:
        """Raise ValueError if a model's path does not exist, before anything heavy is imported."""
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
        return {**mode, **self.said, **draft}

    def flags(self) -> dict[str, Any]:
        """The same as a flat dictionary by flag name."""
        settings = self.settings()
        draft = settings.pop("draft", {})
        return settings | {option_name("draft", name): value for name, value in draft.items()}

    def engine_config(self, **more: Any) -> EngineConfig:
        """The config; `more` are settings from a command's own flags."""
        return EngineConfig.from_settings(self.named_model, {**self.settings(), **more})
