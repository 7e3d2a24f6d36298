"""Settings of the engine: the target, its memory, and its draft."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from ssd.config import schema
from ssd.config.draft import DraftConfig
from ssd.config.runner import (
    BLOCK_SIZE,
    DECODE_TILE,
    MAX_NUM_SEQS,
    PREFILL_TILE,
    DType,
    Precision,
    RunnerConfig,
)
from ssd.config.schema import Setting

Mode = Literal["ar", "sd", "ssd"]
Backup = Literal["auto", "jit", "ngram", "none"]
MAX_LOOKAHEAD = 16
DEFAULT_LOOKAHEAD = 8
TREES_PER_STEP, TREE_SIZE = 16, 64
"""Most trees that a step of the target verifies, and most nodes of a tree."""
_SHARE_BESIDE_A_DRAFT = 0.5
"""The target's share of a GPU's free memory if the draft is loaded on the same GPU later."""
_drafting = partial(Setting, group="Drafting")
_batching = partial(Setting, group="Memory and batching")
_machine = partial(Setting, group="Machine and numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All settings of the engine. The defaults suit a CPU or a single GPU."""

    model: Annotated[
        str,
        Setting(
            "A folder (config.json, safetensors), a .gguf file, or a name on the hub: Qwen/Qwen3-0.6B.",
            remedy="name a model folder, a .gguf file or a model on the hub",
        ),
    ]

    mode: Annotated[
        Mode,
        _drafting(
            "ar: no draft; sd: target and draft take turns; ssd: the draft works ahead.",
            tells_default=False,
        ),
    ] = "ar"
    draft: Annotated[DraftConfig | None, Setting("The draft: its settings, or only its model.")] = None
    lookahead: Annotated[
        int | None,
        _drafting(
            "Most tokens drafted for one verification; default 8. Mode sd drafts exactly this many.",
            least=1,
            most=MAX_LOOKAHEAD,
        ),
    ] = None
    enable_trees: Annotated[bool, _drafting("Verify trees of several paths if that pays off.")] = True
    backup: Annotated[Backup, _drafting("What to draft with after a miss.")] = "auto"

    max_model_len: Annotated[
        int | None, _batching("Longest prompt plus output; else the model's limit.", least=1)
    ] = None
    max_num_seqs: Annotated[int, _batching("Sequences that run at the same time.", least=1)] = MAX_NUM_SEQS
    max_num_batched_tokens: Annotated[int, _batching("Most tokens computed in one forward.", least=1)] = 2048
    enable_chunked_prefill: Annotated[bool, _batching("Compute long prompts in chunks.")] = True
    enable_prefix_caching: Annotated[bool, _batching("Reuse the KV cache of equal prompt prefixes.")] = True
    block_size: Annotated[int, _batching("Tokens in a KV block.", least=1)] = BLOCK_SIZE
    kv_cache_bytes: Annotated[
        int | None,
        _batching(
            "Memory for keys and values.", least=1, flags=("--kv-cache-bytes", "--kv-cache-memory-bytes")
        ),
    ] = None
    num_blocks: Annotated[int | None, _batching("KV blocks, instead of bytes.", least=1)] = None

    device: Annotated[str, _machine("Device: auto, cpu, cuda or cuda:N.")] = "auto"
    dtype: Annotated[DType, _machine("Number format of weights.")] = "auto"
    precision: Annotated[
        Precision,
        _machine("int8 makes the model smaller and faster, and its tokens those of rounded weights."),
    ] = "auto"
    cores: Annotated[tuple[int, ...], _machine("CPU cores to run on, such as 0,1 or 0-3.")] = ()
    deterministic: Annotated[bool, _machine("Give each request the same bits in any batch.")] = False
    decode_tile: Annotated[
        int, _machine("With deterministic: tile size for generated tokens.", least=16, multiple_of=16)
    ] = DECODE_TILE
    prefill_tile: Annotated[
        int, _machine("With deterministic: tile size for prompts.", least=16, multiple_of=16)
    ] = PREFILL_TILE
    hf_cache: Annotated[
        str | None,
        _machine(
            "Folder for models from the hub; default: the hub's own cache.",
            flags=("--hf-cache", "--download-dir"),
            variable="SSD_HF_CACHE",
        ),
    ] = None

    seed: Annotated[int | None, Setting("Base seed for requests that have none.")] = None

    def __post_init__(self) -> None:
        schema.check(self)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is less than "
                f"max_num_seqs={self.max_num_seqs}: every decoding sequence must fit into a step"
            )
        self._check_draft()

    def _check_draft(self) -> None:
        if self.draft is None:
            if self.mode != "ar":
                raise ValueError(f"mode={self.mode!r} needs a draft: name a small model of the same family")
            return
        if self.mode == "ar":
            raise ValueError("a draft is given but mode is 'ar': use mode='ssd', or leave the draft out")
        if self.mode != "ssd" and self.draft.is_elsewhere:
            raise ValueError(f"draft={self.draft.model!r} is an address: use mode='ssd', or name a model")
        if set(self.cores) & set(self.draft.cores):
            raise ValueError("cores and draft.cores overlap: target and draft need cores of their own")

    @property
    def max_lookahead(self) -> int:
        return self.lookahead or (1 if self.mode == "ar" else DEFAULT_LOOKAHEAD)

    @property
    def may_have_trees(self) -> bool:
        """Whether verifications may have trees in this mode."""
        return self.enable_trees and self.mode != "ar"

    @property
    def num_trees(self) -> int:
        """Most sequences of a step whose speculation may be a tree: extra rows cost time in large batches."""
        return min(self.max_num_seqs, TREES_PER_STEP) if self.may_have_trees else 0

    @property
    def _most_decided(self) -> int:
        """Most positions of a step at which a token is sampled."""
        return self.max_num_seqs * (self.max_lookahead + 1) + self.num_trees * TREE_SIZE

    @property
    def own_draft(self) -> DraftConfig | None:
        """The draft that is loaded or started here, with all that it takes over from the engine."""
        if self.draft is None or self.draft.is_elsewhere:
            return None
        return replace(
            self.draft,
            dtype=self.draft.dtype or self.dtype,
            kv_cache_bytes=self.draft.kv_cache_bytes or self.kv_cache_bytes,
            max_num_seqs=self.draft.max_num_seqs or self.max_num_seqs,
        )

    @property
    def runner(self) -> RunnerConfig:
        """Settings for loading the target."""
        return RunnerConfig(
            model=self.model,
            device=self.device,
            dtype=self.dtype,
            precision=self.precision,
            cores=self.cores,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            block_size=self.block_size,
            kv_cache_bytes=self.kv_cache_bytes,
            kv_share=_SHARE_BESIDE_A_DRAFT if self._has_its_draft_beside_it else 1.0,
            num_blocks=self.num_blocks,
            step_rows=self.max_num_batched_tokens,
            step_logits=min(self.max_num_batched_tokens, self._most_decided),
            num_trees=self.num_trees,
            deterministic=self.deterministic,
            decode_tile=self.decode_tile,
            prefill_tile=self.prefill_tile,
        )

    @property
    def draft_runner(self) -> RunnerConfig:
        """Settings for loading the draft; in mode sd it runs on the target's device."""
        if (draft := self.own_draft) is None:
            raise ValueError("no draft is loaded here: name a small model of the same family")
        if self.mode != "sd":
            return draft.runner
        return replace(
            draft.runner,
            device=self.device,
            cores=self.cores,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            step_rows=self.max_num_batched_tokens,
        )

    @property
    def _has_its_draft_beside_it(self) -> bool:
        """Whether target and draft share a device."""
        draft = self.own_draft
        return draft is not None and (self.mode == "sd" or self.device == draft.device)

    @classmethod
    def from_settings(cls, model: str, settings: Mapping[str, Any]) -> "EngineConfig":
        """Make a config from keyword settings. An unknown key raises ValueError with a suggestion."""
        settings = _checked(settings)
        if settings.get("draft") is not None:
            settings["draft"] = DraftConfig.from_settings(settings["draft"])
        return cls(model=model, **settings)

    def changed(self, settings: Mapping[str, Any]) -> "EngineConfig":
        """A copy with other settings; the draft's settings are merged too."""
        settings = _checked(settings)
        if settings.get("draft") is not None and self.draft is not None:
            settings["draft"] = self.draft.changed(settings["draft"])
        elif settings.get("draft") is not None:
            settings["draft"] = DraftConfig.from_settings(settings["draft"])
        return replace(self, **settings)


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the settings; raises ValueError for an unknown one."""
    schema.refuse_unknown(settings, EngineConfig)
    return dict(settings)
