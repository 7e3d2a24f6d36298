"""Engine settings: one frozen object, validated once, in which an unknown key is an error.

Knows names, ranges and defaults. Does not know models, devices or files: whether a
value fits the model at hand is checked where the model is loaded.
"""

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any, Literal, get_args

DType = Literal["auto", "bfloat16", "float16", "float32"]
Mode = Literal["ar", "sd", "ssd"]
GrowthPolicyName = Literal["value", "geometric", "uniform"]
Backup = Literal["auto", "jit", "ngram", "none"]
Precision = Literal["auto", "model", "int8"]
"""How a draft's weights are kept: in its own number format, or rounded to int8."""
Acceptance = Literal["coupled", "ratio"]
MAX_LOOKAHEAD = 16
DEFAULT_LOOKAHEAD = 8
MAX_WIDTH = 64
MAX_CHILDREN = 8


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
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    """Query tokens in one forward; longer prompts are computed in chunks."""
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    block_size: int = 16
    """Token positions in one KV block."""
    kv_cache_bytes: int = 2 << 30
    """Memory for KV blocks, unless num_blocks says how many there are."""
    num_blocks: int | None = None

    decode_tile: int = 16
    """Deterministic mode: generated tokens go through linears in tiles of this many rows."""
    prefill_tile: int = 128
    """Deterministic mode: prompt tokens go through linears in tiles of this many rows."""

    mode: Mode = "ar"
    """`ar`: the target alone. `sd`: a draft guesses, the target verifies, in turns. `ssd`: the draft
    works ahead in a process of its own."""
    draft: str | None = None
    """The draft model, with the target's tokenizer; needed in every mode but `ar`. In mode `ssd` also the
    address of a running `ssd draft`: ipc:///path or tcp://host:port."""
    lookahead: int | None = None
    """Tokens guessed for one verification at most; None: 8. As many as pay by measured times, unless mode
    `sd` is given a number: that it keeps to."""
    draft_device: str = "auto"
    draft_cores: tuple[int, ...] = ()
    """CPU cores of the draft process. On CPUs, target and draft get cores of their own in mode `ssd`: a
    side that is not named gets of the others, one of each physical core."""
    draft_precision: Precision = "auto"
    """`int8` saves a quarter of the draft's time and more, for a few guesses less; `model` is its own number
    format; `auto` takes int8 on CPUs that have it."""
    draft_head: int | None = None
    """The draft only guesses this many frequent tokens; None: any."""
    draft_width: int = 12
    """Nodes the draft processes in one step."""
    draft_children: int = 4
    """Next tokens prepared for each node."""
    draft_lookup: int = 4
    """Tokens a draft step also computes because they followed earlier in the text; 0: none."""
    growth: GrowthPolicyName = "value"
    """Which nodes the draft processes first."""
    backup: Backup = "auto"
    """What a row does when the draft did not foresee its token: wait for one draft step (`jit`), guess from
    its own text (`ngram`), or decode plainly (`none`); `auto` takes whichever pays by measured times."""
    draft_timeout: float = 10.0
    """Seconds of silence after which a draft counts as lost and is started again."""
    draft_keys: str | None = None
    """Folder with the keys of a draft on TCP, as `ssd draft --make-keys` writes it."""
    acceptance: Acceptance = "coupled"
    """`coupled`: the seed's own tokens, in every mode. `ratio`: the same distribution, but other tokens."""
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
        for name in ("deterministic", "enable_chunked_prefill", "enable_prefix_caching"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r}: must be True or False")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise ValueError(f"seed={self.seed!r}: must be a whole number or None")
        for name in ("cores", "draft_cores"):
            _check_cores(name, getattr(self, name))
        if set(self.cores) & set(self.draft_cores):
            raise ValueError("cores and draft_cores overlap: target and draft need cores of their own")

    def _check_sizes(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_bytes"):
            _require_positive(name, getattr(self, name))
        for name in ("max_model_len", "num_blocks"):
            if getattr(self, name) is not None:
                _require_positive(name, getattr(self, name))
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
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode={self.mode!r}: use one of {', '.join(get_args(Mode))}")
        if self.mode == "ar" and self.draft is not None:
            raise ValueError("a draft is given but mode is 'ar': use mode='ssd', or leave the draft out")
        if self.mode != "ar" and self.draft is None:
            raise ValueError(f"mode={self.mode!r} needs a draft: name a small model of the same family")
        if self.mode != "ssd" and self.draft is not None and "://" in self.draft:
            raise ValueError(f"draft={self.draft!r} is an address: use mode='ssd', or name a model")
        if self.lookahead is not None:
            _require_between("lookahead", self.lookahead, MAX_LOOKAHEAD)
        _require_between("draft_width", self.draft_width, MAX_WIDTH)
        _require_between("draft_children", self.draft_children, MAX_CHILDREN)
        if not 0 <= self.draft_lookup <= MAX_WIDTH:
            raise ValueError(f"draft_lookup={self.draft_lookup}: must be between 0 and {MAX_WIDTH}")
        if self.draft_head is not None:
            _require_positive("draft_head", self.draft_head)
        for name, kind in (("growth", GrowthPolicyName), ("backup", Backup), ("draft_precision", Precision)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name}={getattr(self, name)!r}: use one of {', '.join(get_args(kind))}")
        if not 0.1 <= self.draft_timeout <= 3600:
            raise ValueError(f"draft_timeout={self.draft_timeout}: must be between 0.1 and 3600 seconds")

    @property
    def max_lookahead(self) -> int:
        return self.lookahead or (1 if self.mode == "ar" else DEFAULT_LOOKAHEAD)

    def _check_acceptance(self) -> None:
        if self.acceptance not in get_args(Acceptance):
            raise ValueError(f"acceptance={self.acceptance!r}: use one of {', '.join(get_args(Acceptance))}")
        if self.acceptance == "ratio" and self.mode == "ar":
            raise ValueError("acceptance='ratio' but mode is 'ar', where nothing is drafted: use mode='sd'")
        if (
            isinstance(self.saguaro, bool)
            or not isinstance(self.saguaro, int | float)
            or not 0 < self.saguaro <= 1
        ):
            raise ValueError(f"saguaro={self.saguaro!r}: must be a number above 0 and at most 1")
        if self.saguaro != 1 and self.acceptance != "ratio":
            raise ValueError(f"saguaro={self.saguaro} needs acceptance='ratio': leave it at 1 otherwise")

    @classmethod
    def from_settings(cls, model: str, settings: dict[str, Any]) -> "EngineConfig":
        """A config from keyword settings; a misspelt key is named with its nearest neighbour."""
        known = [field.name for field in dataclasses.fields(cls) if field.name != "model"]
        for key in settings:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known settings: {', '.join(known)}"
                raise ValueError(f"unknown setting {key!r}: {hint}")
        return cls(model=model, **settings)


def _check_cores(name: str, cores: object) -> None:
    if (
        not isinstance(cores, tuple)
        or any(not isinstance(core, int) or core < 0 for core in cores)
        or len(set(cores)) != len(cores)
    ):
        raise ValueError(f"{name}={cores!r}: a tuple that names each core once, counting from 0")


def _require_between(name: str, value: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{name}={value!r}: must be between 1 and {most}")


def _require_positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}: must be a whole number of at least 1")
