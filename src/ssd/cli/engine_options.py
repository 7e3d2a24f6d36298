"""What every command that runs an engine can be told: one definition, for generate, chat and serve.

Each field is a setting of EngineConfig under the flag that people know, vLLM's where it means the same.
None stands for "not said": the default is then EngineConfig's own, and the help shows it from there.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import typer

from ssd.cli.config_file import ConfigFile, SpeculativeConfig
from ssd.cli.draft_options import DraftOptions
from ssd.cli.options import option_name, parse_cores, said_in, setting
from ssd.config import Acceptance, Backup, DraftConfig, DType, EngineConfig, Mode
from ssd.models.names import found_here

MODEL_HELP = "A folder (config.json, safetensors), a .gguf file, or a name on the hub: Qwen/Qwen3-0.6B."
_DRAFTING, _BATCHING, _MACHINE = "Drafting", "Memory and batching", "Machine and numbers"
_NO_SETTINGS = ("model_argument", "model", "config", "speculative_config", "tensor_parallel_size")
_option = partial(setting, EngineConfig)


def _switch(name: str, help_text: str, panel: str) -> Any:
    flag = name.replace("_", "-")
    return _option(name, help_text, panel, f"--{flag}/--no-{flag}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    model_argument: Annotated[
        str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)
    ] = None
    model: Annotated[str | None, typer.Option("--model", "-m", help="The same, as an option.")] = None
    config: ConfigFile = None

    mode: Annotated[
        Mode | None,
        typer.Option(
            help="ar: alone; sd: in turns with a draft; ssd: it works ahead, as it does by default.",
            rich_help_panel=_DRAFTING,
            show_default=False,
        ),
    ] = None
    draft: DraftOptions = field(default_factory=DraftOptions)
    speculative_config: SpeculativeConfig = None
    lookahead: Annotated[
        int | None,
        _option(
            "lookahead",
            "Most tokens drafted for one verification, 8 if not given; sd keeps to it.",
            _DRAFTING,
        ),
    ] = None
    acceptance: Annotated[
        Acceptance | None,
        _option("acceptance", "coupled: the seed's own tokens; ratio: the same distribution.", _DRAFTING),
    ] = None
    enable_trees: Annotated[
        bool | None, _switch("enable_trees", "Several paths in one verification, where it pays.", _DRAFTING)
    ] = None
    saguaro: Annotated[
        float | None, _option("saguaro", "With ratio: weight of the draft's likeliest tokens.", _DRAFTING)
    ] = None
    backup: Annotated[
        Backup | None, _option("backup", "What happens when the draft did not foresee a token.", _DRAFTING)
    ] = None
    draft_timeout: Annotated[
        float | None,
        setting(DraftConfig, "timeout", "Seconds of silence until a draft counts as lost.", _DRAFTING),
    ] = None

    max_model_len: Annotated[
        int | None, _option("max_model_len", "Longest prompt plus output; the model's own limit.", _BATCHING)
    ] = None
    max_num_seqs: Annotated[
        int | None, _option("max_num_seqs", "Sequences that run at the same time.", _BATCHING)
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, _option("max_num_batched_tokens", "Query tokens in one forward.", _BATCHING)
    ] = None
    enable_chunked_prefill: Annotated[
        bool | None, _switch("enable_chunked_prefill", "Long prompts in chunks.", _BATCHING)
    ] = None
    enable_prefix_caching: Annotated[
        bool | None, _switch("enable_prefix_caching", "Equal beginnings of prompts are kept.", _BATCHING)
    ] = None
    block_size: Annotated[int | None, _option("block_size", "Tokens in a KV block.", _BATCHING)] = None
    kv_cache_bytes: Annotated[
        int | None,
        _option(
            "kv_cache_bytes",
            "Memory for keys and values.",
            _BATCHING,
            "--kv-cache-bytes",
            "--kv-cache-memory-bytes",
        ),
    ] = None
    num_blocks: Annotated[int | None, _option("num_blocks", "KV blocks, instead of bytes.", _BATCHING)] = None

    device: Annotated[str | None, _option("device", "auto, cpu, cuda or cuda:N.", _MACHINE)] = None
    dtype: Annotated[DType | None, _option("dtype", "Number format of weights.", _MACHINE)] = None
    cores: Annotated[str | None, _option("cores", "CPU cores to run on, such as 0,1 or 0-3.", _MACHINE)] = (
        None
    )
    deterministic: Annotated[
        bool | None, _switch("deterministic", "Bitwise the same whatever runs beside it.", _MACHINE)
    ] = None
    decode_tile: Annotated[int | None, _option("decode_tile", "Rows of a tile, generated.", _MACHINE)] = None
    prefill_tile: Annotated[int | None, _option("prefill_tile", "Rows of a tile, prompts.", _MACHINE)] = None
    tensor_parallel_size: Annotated[
        int,
        typer.Option(
            "--tensor-parallel-size", "-tp", rich_help_panel=_MACHINE, help="Only with --engine vllm."
        ),
    ] = 1
    hf_cache: Annotated[
        str | None,
        _option(
            "hf_cache",
            "Where models of the hub are kept; the hub's own cache.",
            _MACHINE,
            "--hf-cache",
            "--download-dir",
            envvar="SSD_HF_CACHE",
        ),
    ] = None

    @property
    def named_model(self) -> str:
        if self.model and self.model_argument and self.model != self.model_argument:
            raise ValueError(f"two models, {self.model_argument} and {self.model}: name one")
        named = self.model_argument or self.model
        if not named:
            raise ValueError(f"no model is named. {MODEL_HELP}")
        return named

    def require_models(self) -> None:
        """ValueError for a path that leads nowhere, before anything heavy is imported."""
        for model in (self.named_model, self.draft.model):
            if model is not None and "://" not in model:
                found_here(model)

    def settings(self, *, for_vllm: bool = False) -> dict[str, Any]:
        """What was said, as settings of EngineConfig; a draft alone means that it works ahead."""
        if self.tensor_parallel_size != 1 and not for_vllm:
            raise ValueError(
                f"--tensor-parallel-size {self.tensor_parallel_size}: our own target runs on one device so "
                "far; leave it at 1, or use `ssd serve --engine vllm`"
            )
        said = {name: value for name, value in said_in(self).items() if name not in _NO_SETTINGS}
        if self.cores is not None:
            said["cores"] = parse_cores(self.cores)
        draft = self.draft.settings()
        if "draft_timeout" in said:
            draft["timeout"] = said.pop("draft_timeout")
        if draft:
            said["draft"] = draft
        if self.draft.model is not None:
            said.setdefault("mode", "ssd")
        return said

    def said(self) -> dict[str, Any]:
        """The same by names of flags, on one level."""
        settings = self.settings()
        draft = settings.pop("draft", {})
        return settings | {option_name("draft", name): value for name, value in draft.items()}

    def engine_config(self, **more: Any) -> EngineConfig:
        """The whole of it; `more` are settings that a command takes by flags of its own."""
        return EngineConfig.from_settings(self.named_model, {**self.settings(), **more})
