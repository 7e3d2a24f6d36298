"""Sizes of dense decoders: weights, layers and KV cache per token.

By a name in `data/models.toml`, by a size alone (`70B`), or from a model's config.json.
"""

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

Weights = Literal["bf16", "fp8", "int8", "int4"]
BYTES: Mapping[Weights, float] = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True, slots=True)
class ModelSize:
    name: str
    params: float
    """Number of all weights."""
    read: float
    """Number of weights that a forward reads: without the embedding table."""
    layers: int
    hidden: int
    kv: int
    """KV cache entries per token and layer."""
    weights: Weights = "bf16"

    @property
    def bytes_read(self) -> float:
        return self.read * BYTES[self.weights]

    @property
    def bytes_held(self) -> float:
        return self.params * BYTES[self.weights]

    @property
    def kv_bytes(self) -> float:
        """Of one token; keys and values are kept in 16 bits."""
        return 2.0 * self.kv * self.layers


@cache
def built_in() -> Mapping[str, Mapping[str, float]]:
    text = files("ssd.planning").joinpath("data/models.toml").read_text()
    return tomllib.loads(text)


def find_model(name: str, weights: Weights = "bf16") -> ModelSize:
    if weights not in get_args(Weights):
        raise ValueError(f"weights {weights!r}: use one of {', '.join(get_args(Weights))}")
    rows = built_in()
    path = Path(name)
    # A name on the hub, such as Qwen/Qwen3-8B, ends in the name of the table.
    wanted = name.lower().rpartition("/")[2].removesuffix("-instruct")
    matches = [key for key in rows if key == wanted or key.endswith(f"-{wanted}")]
    if matches and not ("/" in name and path.exists()):
        row = rows[matches[0]]
        return ModelSize(
            matches[0],
            row["params"] * 1e9,
            (row["params"] - row["embedding"]) * 1e9,
            int(row["layers"]),
            int(row["hidden"]),
            int(row["kv"]),
            weights,
        )
    if path.exists():
        return _from_config(path / "config.json" if path.is_dir() else path, weights)
    near = difflib.get_close_matches(wanted, rows, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(rows)}"
    raise ValueError(f"no model {name!r}: {hint}; or give a model's config.json")


def _from_config(path: Path, weights: Weights) -> ModelSize:
    try:
        config: dict[str, Any] = json.loads(path.read_text())
        hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
        heads, vocab = int(config["num_attention_heads"]), int(config["vocab_size"])
        middle = int(config["intermediate_size"])
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} does not describe a dense decoder ({error}): give its config.json"
        ) from error
    kv_heads = int(config.get("num_key_value_heads", heads))
    head = int(config.get("head_dim") or hidden // heads)
    layer = 2 * hidden * heads * head + 2 * hidden * kv_heads * head + 3 * hidden * middle
    table = vocab * hidden
    params = layers * layer + table * (1 if config.get("tie_word_embeddings") else 2)
    name = path.parent.name or path.stem
    return ModelSize(name, params, layers * layer + table, layers, hidden, 2 * kv_heads * head, weights)
