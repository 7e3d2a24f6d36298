"""Settings of the engine: the target, its memory, and what a step of the target decides about drafting."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from ssd.config.checks import (
    refuse_unknown,
    require_choice,
    require_cores,
    require_whole,
)
from ssd.config.draft import DraftConfig
from ssd.config.runner import (
    BLOCK_SIZE,
    DECODE_TILE,
    MAX_NUM_SEQS,
    PREFILL_TILE,
    DType,
    RunnerConfig,
)

Mode = Literal["ar", "sd", "ssd"]
Backup = Literal["auto", "jit", "ngram", "none"]
Acceptance = Literal["coupled", "ratio"]
MAX_LOOKAHEAD = 16
DEFAULT_LOOKAHEAD = 8
TREES_PER_STEP, TREE_SIZE = 16, 64
"""Trees that a step of the target verifies at most, and nodes of one."""
_SHARE_BESIDE_A_DRAFT = 0.5
"""Of the memory for KV that a GPU has left: the draft's weights and all its own come out of the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything the engine can be told. Defaults suit a CPU or a single GPU."""

    model: str
    """A model folder (config.json and safetensors), a GGUF file, or a name on the hub."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:1` …"""
    dtype: DType = "auto"
    """`auto` takes bfloat16, or float32 on a CPU without bfloat16 instructions; a checkpoint in float16 keeps
    its bits."""
    deterministic: bool = False
    """Bitwise the same logits for a token whatever else is computed beside it."""
    cores: tuple[int, ...] = ()
    """CPU cores to pin this process to, a thread for each; empty leaves threads and affinity alone."""
    hf_cache: str | None = None
    """Where models of the hub are kept; None: the hub's own cache."""

    max_model_len: int | None = None
    """Longest prompt plus output; None takes the model's own limit, or what the KV cache can hold if less."""
    max_num_seqs: int = MAX_NUM_SEQS
    max_num_batched_tokens: int = 2048
    """Query tokens in one forward; longer prompts are computed in chunks."""
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    block_size: int = BLOCK_SIZE
    """Token positions in one KV block."""
    kv_cache_bytes: int | None = None
    """Memory for KV blocks, unless num_blocks says how many there are; None: 2 GiB on a CPU, on a GPU what
    weights and captured steps leave."""
    num_blocks: int | None = None

    decode_tile: int = DECODE_TILE
    """Deterministic mode: generated tokens go through linears in tiles of this many rows."""
    prefill_tile: int = PREFILL_TILE
    """Deterministic mode: prompt tokens go through linears in tiles of this many rows."""

    mode: Mode = "ar"
    """`ar`: the target alone. `sd`: a draft guesses, the target verifies, in turns. `ssd`: the draft
    works ahead in a process of its own."""
    draft: DraftConfig | None = None
    """Who guesses; needed in every mode but `ar`."""
    lookahead: int | None = None
    """Tokens guessed for one verification at most; None: 8. As many as pay by measured times, unless mode
    `sd` is given a number: that it keeps to."""
    backup: Backup = "auto"
    """What a row does when the draft did not foresee its token: wait for one draft step (`jit`), guess from
    its own text (`ngram`), or decode plainly (`none`); `auto` takes whichever pays by measured times."""
    acceptance: Acceptance = "coupled"
    """`coupled`: the seed's own tokens, in every mode. `ratio`: the same distribution, but other tokens."""
    enable_trees: bool = True
    """Whether a verification may take several paths of a draft's tree, where that pays by measured times;
    coupled acceptance only."""
    saguaro: float = 1.0
    """Ratio acceptance: how heavy the draft's likeliest tokens stay among what it draws from; 1 is off."""

    seed: int | None = None
    """Where the seeds of requests without one come from; None draws them from the system."""

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model is empty: name a model folder, a .gguf file or a model on the hub")
        self._check_types()
        self._check_sizes()
        self._check_drafting()
        self._check_acceptance()

    def _check_types(self) -> None:
        for name in ("deterministic", "enable_chunked_prefill", "enable_prefix_caching", "enable_trees"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r}: must be True or False")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise ValueError(f"seed={self.seed!r}: must be a whole number or None")
        require_cores("cores", self.cores)
        if self.draft is None:
            return
        if not isinstance(self.draft, DraftConfig):
            raise ValueError(f"draft={self.draft!r}: give a DraftConfig, or use EngineConfig.from_settings")
        if set(self.cores) & set(self.draft.cores):
            raise ValueError("cores and draft.cores overlap: target and draft need cores of their own")

    def _check_sizes(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
            require_whole(name, getattr(self, name), 1)
        for name in ("max_model_len", "kv_cache_bytes", "num_blocks"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), 1)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is less than "
                f"max_num_seqs={self.max_num_seqs}: every decoding sequence must fit into a step"
            )
        for name in ("decode_tile", "prefill_tile"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 16 or value % 16:
                raise ValueError(f"{name}={value!r}: must be a multiple of 16")

    def _check_drafting(self) -> None:
        require_choice("mode", self.mode, Mode)
        require_choice("backup", self.backup, Backup)
        if self.mode == "ar" and self.draft is not None:
            raise ValueError("a draft is given but mode is 'ar': use mode='ssd', or leave the draft out")
        if self.mode != "ar" and self.draft is None:
            raise ValueError(f"mode={self.mode!r} needs a draft: name a small model of the same family")
        if self.mode != "ssd" and self.draft is not None and self.draft.is_elsewhere:
            raise ValueError(f"draft={self.draft.model!r} is an address: use mode='ssd', or name a model")
        if self.lookahead is not None:
            require_whole("lookahead", self.lookahead, 1, MAX_LOOKAHEAD)

    def _check_acceptance(self) -> None:
        require_choice("acceptance", self.acceptance, Acceptance)
        if self.acceptance == "ratio" and self.mode == "ar":
            raise ValueError("acceptance='ratio' but mode is 'ar', where nothing is drafted: use mode='sd'")
        is_number = isinstance(self.saguaro, int | float) and not isinstance(self.saguaro, bool)
        if not is_number or not 0 < self.saguaro <= 1:
            raise ValueError(f"saguaro={self.saguaro!r}: must be a number above 0 and at most 1")
        if self.saguaro != 1 and self.acceptance != "ratio":
            raise ValueError(f"saguaro={self.saguaro} needs acceptance='ratio': leave it at 1 otherwise")

    @property
    def max_lookahead(self) -> int:
        return self.lookahead or (1 if self.mode == "ar" else DEFAULT_LOOKAHEAD)

    @property
    def may_have_trees(self) -> bool:
        """Whether this mode's verifications may take trees."""
        return self.enable_trees and self.mode != "ar" and self.acceptance == "coupled"

    @property
    def num_trees(self) -> int:
        """Sequences of a step that may have one verified: where many run, rows are not free."""
        return min(self.max_num_seqs, TREES_PER_STEP) if self.may_have_trees else 0

    @property
    def _most_decided(self) -> int:
        """Places of a step at which a token may be decided."""
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
        """The target's."""
        return RunnerConfig(
            model=self.model,
            device=self.device,
            dtype=self.dtype,
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
        """Of a draft that is here; one that takes turns with the target computes where it does."""
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
        """On the same device, whose memory is the target's first."""
        draft = self.own_draft
        return draft is not None and (self.mode == "sd" or self.device in draft.device.split(","))

    @classmethod
    def from_settings(cls, model: str, settings: Mapping[str, Any]) -> "EngineConfig":
        """A config from keyword settings; a misspelt key is named with its nearest neighbour."""
        settings = _checked(settings)
        if settings.get("draft") is not None:
            settings["draft"] = DraftConfig.from_settings(settings["draft"])
        return cls(model=model, **settings)

    def changed(self, settings: Mapping[str, Any]) -> "EngineConfig":
        """Other settings; what is not given stays, within the draft's too."""
        settings = _checked(settings)
        if settings.get("draft") is not None and self.draft is not None:
            settings["draft"] = self.draft.changed(settings["draft"])
        elif settings.get("draft") is not None:
            settings["draft"] = DraftConfig.from_settings(settings["draft"])
        return replace(self, **settings)


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """As they are, if all of them are known."""
    refuse_unknown(settings, [field.name for field in fields(EngineConfig) if field.name != "model"])
    return dict(settings)
