"""What a draft can be told: one definition, for `ssd draft` and, as --draft-…, for commands that start one.

Each field is a setting of DraftConfig; None stands for "not said". How long an engine waits for a draft is
the engine's to say (engine_options.py).
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from ssd.cli.options import parse_cores, said_in, setting
from ssd.config import DraftConfig, DType, GrowthPolicyName, Precision

_option = partial(setting, DraftConfig)
_PANEL = "Drafting"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    model: Annotated[
        str | None,
        _option(
            "model",
            "Small model of the same tokenizer; for engines also where an `ssd draft` listens.",
            _PANEL,
        ),
    ] = None
    name: Annotated[
        str | None, _option("name", "What requests call it: code, chat; the model's own name.", _PANEL)
    ] = None
    device: Annotated[str | None, _option("device", "Of the draft: auto, cpu, cuda or cuda:N.", _PANEL)] = (
        None
    )
    dtype: Annotated[DType | None, _option("dtype", "Number format of the draft's weights.", _PANEL)] = None
    cores: Annotated[str | None, _option("cores", "CPU cores of the draft, such as 1 or 2,3.", _PANEL)] = None
    precision: Annotated[Precision | None, _option("precision", "int8 makes the draft faster.", _PANEL)] = (
        None
    )
    head: Annotated[
        int | None, _option("head", "The draft guesses this many frequent tokens only.", _PANEL)
    ] = None
    width: Annotated[int | None, _option("width", "Nodes processed in one step.", _PANEL)] = None
    children: Annotated[int | None, _option("children", "Next tokens prepared for each node.", _PANEL)] = None
    lookup: Annotated[
        int | None, _option("lookup", "Tokens it also computes from earlier text; 0: none.", _PANEL)
    ] = None
    growth: Annotated[
        GrowthPolicyName | None, _option("growth", "Which nodes the draft processes first.", _PANEL)
    ] = None
    kv_cache_bytes: Annotated[
        int | None, _option("kv_cache_bytes", "Memory for the draft's keys and values.", _PANEL)
    ] = None
    max_num_seqs: Annotated[
        int | None, _option("max_num_seqs", "Sequences the draft speculates for at a time.", _PANEL)
    ] = None
    weights: Annotated[
        str | None, _option("weights", "Shares of tenants by name, such as alice=4,bob=2.", _PANEL)
    ] = None
    keys: Annotated[
        str | None, _option("keys", "Folder with the keys of this side, for a draft on TCP.", _PANEL)
    ] = None

    def settings(self) -> dict[str, Any]:
        """What was said, as settings of DraftConfig."""
        said = said_in(self)
        if self.cores is not None:
            said["cores"] = parse_cores(self.cores)
        if self.weights is not None:
            said["weights"] = tuple(filter(None, self.weights.split(",")))
        return said
