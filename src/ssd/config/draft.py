"""Settings of a draft, whether an engine starts it or `ssd draft` does."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from ssd.config import schema
from ssd.config.runner import MAX_NUM_SEQS, DType, Precision, RunnerConfig
from ssd.config.schema import Setting

GrowthPolicyName = Literal["value", "geometric"]
MAX_WIDTH = 64
DEFAULT_WIDTH = 12
_MOST_TREES = 256
"""As many sequences as vLLM runs at a time by default. How many the draft takes follows from its rows."""
MAX_CHILDREN = 8
_MAX_NAME = 256
_PREFILL_CHUNK = 2048
"""Prompt tokens that a draft on a GPU reads at a time, at most."""
LEAST_TIMEOUT = 3
"""Seconds. An idle draft gives a sign of life every 2 s: shorter timeouts would end its connection again and
again."""
TIMEOUT_REMEDY = f"an idle draft speaks every 2 seconds: use {LEAST_TIMEOUT} to 3600, or leave it out for 10"
_setting = partial(Setting, group="Drafting")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """All settings of a draft; None means the engine's value."""

    model: Annotated[
        str,
        _setting(
            "Small model with the same tokenizer, or address of an `ssd draft`.",
            remedy="name a small model of the same family",
        ),
    ]
    name: Annotated[
        str | None,
        _setting(
            "Name by which requests choose it, such as code or chat; default: the model's name.",
            most=_MAX_NAME,
            remedy=f"give a name of 1 to {_MAX_NAME} characters",
        ),
    ] = None
    device: Annotated[str, _setting("Device of the draft: auto, cpu, cuda or cuda:N.")] = "auto"
    dtype: Annotated[DType | None, _setting("Number format of the draft's weights.")] = None
    cores: Annotated[tuple[int, ...], _setting("CPU cores of the draft, such as 1 or 2,3.")] = ()
    precision: Annotated[Precision, _setting("int8 makes the draft faster.")] = "auto"
    head: Annotated[int | None, _setting("Draft only this many of the most frequent tokens.", least=1)] = None
    width: Annotated[int, _setting("Nodes processed in one step.", least=1, most=MAX_WIDTH)] = DEFAULT_WIDTH
    children: Annotated[int, _setting("Next tokens prepared for each node.", least=1, most=MAX_CHILDREN)] = 4
    lookup: Annotated[
        int, _setting("Tokens per step that are looked up in earlier text; 0: none.", least=0, most=MAX_WIDTH)
    ] = 4
    growth: Annotated[GrowthPolicyName, _setting("Policy that decides which nodes are processed first.")] = (
        "value"
    )
    kv_cache_bytes: Annotated[int | None, _setting("Memory for the draft's keys and values.", least=1)] = None
    max_num_seqs: Annotated[
        int | None, _setting("Sequences the draft speculates for at a time.", least=1)
    ] = None
    weights: Annotated[tuple[str, ...], _setting("Shares of tenants by name, such as alice=4,bob=2.")] = ()
    timeout: Annotated[
        float,
        _setting(
            "Idle timeout of the connection to a draft, in seconds.",
            least=LEAST_TIMEOUT,
            most=3600,
            remedy=TIMEOUT_REMEDY,
        ),
    ] = 10.0
    pool_size: Annotated[
        int, _setting("Drafts of a pool that a target uses at a time.", least=1, most=1000)
    ] = 4
    keys: Annotated[str | None, _setting("Folder with this side's keys, for a draft on TCP.")] = None

    def __post_init__(self) -> None:
        schema.check(self, "draft.")
        weights_of(self.weights)

    @classmethod
    def from_settings(cls, given: "str | Mapping[str, Any] | DraftConfig") -> "DraftConfig":
        """Make a config from a model's name or a mapping. An unknown key raises ValueError."""
        if isinstance(given, DraftConfig):
            return given
        settings = _settings_of(given)
        if "model" not in settings:
            raise ValueError("settings of a draft, but no draft: name a small model of the same family")
        return cls(**settings)

    def changed(self, given: "str | Mapping[str, Any] | DraftConfig") -> "DraftConfig":
        """A copy with other settings."""
        return given if isinstance(given, DraftConfig) else replace(self, **_settings_of(given))

    @property
    def tenant_weights(self) -> dict[str, float]:
        return weights_of(self.weights)

    @property
    def is_elsewhere(self) -> bool:
        """Whether `model` is the address of a draft that already runs."""
        return "://" in self.model

    @property
    def runner(self) -> RunnerConfig:
        return RunnerConfig(
            model=self.model,
            device=self.device,
            dtype=self.dtype or "auto",
            cores=self.cores,
            precision=self.precision,
            is_draft=True,
            head=self.head,
            max_num_seqs=self.max_num_seqs or MAX_NUM_SEQS,
            num_trees=self.max_num_seqs or _MOST_TREES,
            least_trees=1,
            kv_cache_bytes=self.kv_cache_bytes,
            step_rows=_PREFILL_CHUNK,
        )


def _settings_of(given: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(given, str):
        return {"model": given}
    if not isinstance(given, Mapping):
        raise ValueError(f"draft={given!r}: give a model's name, a dictionary of settings or a DraftConfig")
    schema.refuse_unknown(given, DraftConfig, "draft.")
    return dict(given)


def weights_of(given: tuple[str, ...]) -> dict[str, float]:
    """`("alice=4", "bob=0.5")` → {"alice": 4.0, "bob": 0.5}."""
    found: dict[str, float] = {}
    for each in given:
        name, _, weight = each.partition("=")
        if not name or name in found or not 1e-3 <= _number(weight) <= 1e3:
            raise ValueError(
                f"draft.weights={given!r}: name each once, with a weight between 0.001 and 1000: alice=4"
            )
        found[name] = float(weight)
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
