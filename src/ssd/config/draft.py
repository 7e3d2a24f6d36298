"""Settings of a draft: the same whether an engine starts it or `ssd draft` runs it alone."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from ssd.config.checks import (
    refuse_unknown,
    require_choice,
    require_cores,
    require_number,
    require_whole,
    weights_of,
)
from ssd.config.runner import MAX_NUM_SEQS, DType, Precision, RunnerConfig

GrowthPolicyName = Literal["value", "geometric", "uniform"]
MAX_WIDTH = 64
DEFAULT_WIDTH = 12
MAX_CHILDREN = 8
MAX_NAME = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Everything a draft can be told; None leaves a setting to the engine that starts it."""

    model: str
    """A small model with the target's tokenizer, named as the target is. In mode `ssd` also where `ssd draft`
    runs: ipc:///path, tcp://host:port, several with commas between them, or dns://name:port."""
    name: str | None = None
    """What requests call it that want this draft and no other (`draft`); None: the model's own name. Drafts
    of one name are one kind, as good as each other."""
    device: str = "auto"
    """`auto` takes a GPU that the target leaves, if there is one."""
    dtype: DType | None = None
    """None: as the engine's."""
    cores: tuple[int, ...] = ()
    """CPU cores of the draft process. On CPUs, target and draft get cores of their own in mode `ssd`: a
    side that is not named gets of the others, one of each physical core."""
    precision: Precision = "auto"
    """`int8` saves a quarter of the draft's time and more, for a few guesses less; `model` is its own number
    format; `auto` takes int8 on CPUs that have it."""
    head: int | None = None
    """The draft only guesses this many frequent tokens; None: any."""
    width: int = DEFAULT_WIDTH
    """Nodes processed in one step."""
    children: int = 4
    """Next tokens prepared for each node."""
    lookup: int = 4
    """Tokens a step also computes because they followed earlier in the text; 0: none."""
    growth: GrowthPolicyName = "value"
    """Which nodes are processed first."""
    kv_cache_bytes: int | None = None
    """Memory for KV blocks; None: as the engine's."""
    max_num_seqs: int | None = None
    """Sequences speculated for at a time; None: as the engine's."""
    weights: tuple[str, ...] = ()
    """Shares of tenants in a draft that several engines use, such as ("alice=4", "bob=2"); of others 1."""
    timeout: float = 10.0
    """Seconds of silence after which a draft counts as lost and is started again."""
    keys: str | None = None
    """Folder with the keys of a draft on TCP, as `ssd draft --make-keys` writes it."""

    def __post_init__(self) -> None:
        if not self.model or not isinstance(self.model, str):
            raise ValueError(f"draft.model={self.model!r}: name a small model of the same family")
        if self.name is not None and not (isinstance(self.name, str) and 0 < len(self.name) <= MAX_NAME):
            raise ValueError(f"draft.name={self.name!r}: give a name of 1 to {MAX_NAME} characters")
        require_cores("draft.cores", self.cores)
        require_whole("draft.width", self.width, 1, MAX_WIDTH)
        require_whole("draft.children", self.children, 1, MAX_CHILDREN)
        require_whole("draft.lookup", self.lookup, 0, MAX_WIDTH)
        for name in ("head", "kv_cache_bytes", "max_num_seqs"):
            if getattr(self, name) is not None:
                require_whole(f"draft.{name}", getattr(self, name), 1)
        require_choice("draft.growth", self.growth, GrowthPolicyName)
        require_choice("draft.precision", self.precision, Precision)
        if self.dtype is not None:
            require_choice("draft.dtype", self.dtype, DType)
        weights_of("draft.weights", self.weights)
        require_number("draft.timeout", self.timeout, 0.1, 3600)

    @classmethod
    def from_settings(cls, given: "str | Mapping[str, Any] | DraftConfig") -> "DraftConfig":
        """A name is short for a draft of that model; a misspelt key is named with its nearest neighbour."""
        if isinstance(given, DraftConfig):
            return given
        settings = _settings_of(given)
        if "model" not in settings:
            raise ValueError("settings of a draft, but no draft: name a small model of the same family")
        return cls(**settings)

    def changed(self, given: "str | Mapping[str, Any] | DraftConfig") -> "DraftConfig":
        """Another model, or other settings; what is not given stays."""
        return given if isinstance(given, DraftConfig) else replace(self, **_settings_of(given))

    @property
    def tenant_weights(self) -> dict[str, float]:
        return weights_of("draft.weights", self.weights)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it runs already, at an address, and is somebody else's."""
        return "://" in self.model

    @property
    def runner(self) -> RunnerConfig:
        return RunnerConfig(
            model=self.model,
            device=self.device.split(",")[0],
            dtype=self.dtype or "auto",
            cores=self.cores,
            precision=self.precision,
            head=self.head,
            max_num_seqs=self.max_num_seqs or MAX_NUM_SEQS,
            num_trees=self.max_num_seqs or MAX_NUM_SEQS,
            least_trees=1,
            kv_cache_bytes=self.kv_cache_bytes,
        )


def _settings_of(given: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(given, str):
        return {"model": given}
    if not isinstance(given, Mapping):
        raise ValueError(f"draft={given!r}: give a model's name, a dictionary of settings or a DraftConfig")
    refuse_unknown(map(str, given), DRAFT_SETTINGS, owner="draft")
    return dict(given)


DRAFT_SETTINGS = [field.name for field in fields(DraftConfig)]
