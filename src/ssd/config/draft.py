"""Settings of a draft: the same whether an engine starts it or `ssd draft` runs it alone."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from ssd.config import schema
from ssd.config.runner import MAX_NUM_SEQS, DType, Precision, RunnerConfig
from ssd.config.schema import Setting

GrowthPolicyName = Literal["value", "geometric", "uniform"]
MAX_WIDTH = 64
DEFAULT_WIDTH = 12
MAX_CHILDREN = 8
_MAX_NAME = 256
_setting = partial(Setting, group="Drafting")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Everything a draft can be told; None leaves a setting to the engine that starts it."""

    model: Annotated[
        str,
        _setting(
            "Small model of the same tokenizer; for engines also where an `ssd draft` listens.",
            remedy="name a small model of the same family",
        ),
    ]
    name: Annotated[
        str | None,
        _setting(
            "What requests call it: code, chat; the model's own name.",
            most=_MAX_NAME,
            remedy=f"give a name of 1 to {_MAX_NAME} characters",
        ),
    ] = None
    device: Annotated[str, _setting("Device of the draft: auto, cpu, cuda or cuda:N.")] = "auto"
    dtype: Annotated[DType | None, _setting("Number format of the draft's weights.")] = None
    cores: Annotated[tuple[int, ...], _setting("CPU cores of the draft, such as 1 or 2,3.")] = ()
    precision: Annotated[Precision, _setting("int8 makes the draft faster.")] = "auto"
    head: Annotated[int | None, _setting("The draft guesses this many frequent tokens only.", least=1)] = None
    width: Annotated[int, _setting("Nodes processed in one step.", least=1, most=MAX_WIDTH)] = DEFAULT_WIDTH
    children: Annotated[int, _setting("Next tokens prepared for each node.", least=1, most=MAX_CHILDREN)] = 4
    lookup: Annotated[
        int, _setting("Tokens it also computes from earlier text; 0: none.", least=0, most=MAX_WIDTH)
    ] = 4
    growth: Annotated[GrowthPolicyName, _setting("Which nodes the draft processes first.")] = "value"
    kv_cache_bytes: Annotated[int | None, _setting("Memory for the draft's keys and values.", least=1)] = None
    max_num_seqs: Annotated[
        int | None, _setting("Sequences the draft speculates for at a time.", least=1)
    ] = None
    weights: Annotated[tuple[str, ...], _setting("Shares of tenants by name, such as alice=4,bob=2.")] = ()
    timeout: Annotated[
        float, _setting("Seconds of silence until a draft counts as lost.", least=0.1, most=3600)
    ] = 10.0
    keys: Annotated[str | None, _setting("Folder with the keys of this side, for a draft on TCP.")] = None

    def __post_init__(self) -> None:
        schema.check(self, "draft.")
        weights_of(self.weights)

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
        return weights_of(self.weights)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it runs already, at an address, and is somebody else's."""
        return "://" in self.model

    @property
    def runner(self) -> RunnerConfig:
        return RunnerConfig(
            model=self.model,
            device=self.device,
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
    schema.refuse_unknown(given, DraftConfig, "draft.")
    return dict(given)


def weights_of(said: tuple[str, ...]) -> dict[str, float]:
    """`("alice=4", "bob=0.5")` → {"alice": 4.0, "bob": 0.5}."""
    found: dict[str, float] = {}
    for each in said:
        who, _, weight = each.partition("=")
        if not who or who in found or not 1e-3 <= _number(weight) <= 1e3:
            raise ValueError(
                f"draft.weights={said!r}: name each once, with a weight between 0.001 and 1000: alice=4"
            )
        found[who] = float(weight)
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
