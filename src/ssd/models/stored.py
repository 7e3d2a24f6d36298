"""Estimates a model's size from its configuration and the sizes of its files, for any architecture.

Used for models that vLLM loads. Reads one JSON file and no weights. Asks the hub about models that are not
on this machine.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from ssd.models.names import parse_hub_name

_WEIGHTS = (".safetensors", ".bin", ".pt")
"""In vLLM's order of preference; a folder may contain the same weights in several forms."""
_ITEMSIZES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
_BYTE_SIZED = ("fp8", "int8")
"""Prefixes of vLLM's names for one-byte formats of keys and values."""
_MIXED = (
    "attention_chunk_size",
    "attn_layer_period",
    "attn_type_list",
    "block_types",
    "full_attention_interval",
    "hybrid_override_pattern",
    "kv_lora_rank",
    "layers_block_type",
    "linear_num_key_heads",
    "multi_query",
    "ssm_cfg",
)
"""Configuration keys of models in which some layers do not store all keys and values of all heads."""
_UNREACHED: type[Exception] = HfHubHTTPError.__bases__[0]
"""Raised by the hub's client without a network: an error of httpx or httpx2, depending on its version."""


@dataclass(frozen=True, slots=True)
class StoredSize:
    weights: int
    """Bytes, in the requested number format."""
    kv_per_token: int
    """Bytes of keys and values; 0: unknown."""
    longest: int
    """Maximum number of tokens; 0: unknown."""


def stored_size(
    model: str, *, hf_cache: str | None, dtype: str | None, kv_dtype: str | None = None
) -> StoredSize | None:
    """The model's size when loaded; None if there are no weights, or their size is unknown.

    `dtype`: number format of the loaded weights; None: as declared. `kv_dtype`: of keys and values; None: the
    same as the weights.
    """
    files = _files(Path(model).expanduser(), model, hf_cache)
    if files is None:
        return None
    sizes, config = files
    weights = _weights(sizes)
    if not weights:
        return None
    text = {**config, **(config.get("text_config") or {})}
    declared = str(text.get("dtype") or text.get("torch_dtype") or "bfloat16")
    item = _ITEMSIZES.get(dtype or declared, 2)
    if not text.get("quantization_config"):
        weights = weights * item // _ITEMSIZES.get(declared, 2)
    kv_item = item if kv_dtype is None else _kv_itemsize(kv_dtype)
    return StoredSize(weights, _kv_per_token(text, kv_item), int(text.get("max_position_embeddings") or 0))


def _files(path: Path, model: str, hf_cache: str | None) -> tuple[dict[str, int], dict[str, Any]] | None:
    """The sizes of a model's files by name, and its configuration."""
    if path.is_dir():
        return _in_folder(path)
    name = parse_hub_name(model)
    if name is None:
        return None
    where: dict[str, Any] = {"revision": name.revision, "cache_dir": hf_cache}
    try:
        cached = _in_folder(Path(snapshot_download(name.repo, local_files_only=True, **where)))
        if cached is not None and _weights(cached[0]):
            return cached
    except (LocalEntryNotFoundError, OSError, ValueError):
        pass
    try:
        info = HfApi().model_info(name.repo, revision=name.revision, files_metadata=True, timeout=10)
        config = json.loads(Path(hf_hub_download(name.repo, "config.json", **where)).read_text())
    except (_UNREACHED, LocalEntryNotFoundError, OSError, ValueError):
        return None
    return {each.rfilename: each.size or 0 for each in info.siblings or ()}, config


def _in_folder(path: Path) -> tuple[dict[str, int], dict[str, Any]] | None:
    try:
        config = json.loads((path / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return {each.name: each.stat().st_size for each in path.iterdir() if each.is_file()}, config


def _weights(sizes: Mapping[str, int]) -> int:
    """Bytes of the weights in their first form; `consolidated…` files duplicate the others."""
    for suffix in _WEIGHTS:
        named = {name: size for name, size in sizes.items() if name.endswith(suffix) and "/" not in name}
        sharded = {name: size for name, size in named.items() if not name.startswith("consolidated")}
        if total := sum((sharded or named).values()):
            return total
    return 0


def _kv_per_token(config: Mapping[str, Any], item: int) -> int:
    """0 unless every layer stores the keys and values of all heads for every token."""
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    hidden = config.get("hidden_size")
    if not (layers and heads and hidden) or _has_partial_kv(config):
        return 0
    size = config.get("head_dim") or hidden // heads
    return int(2 * layers * (config.get("num_key_value_heads") or heads) * size * item)


def _has_partial_kv(config: Mapping[str, Any]) -> bool:
    """Whether some layers store a window, a state or a compressed form instead of all keys and values."""
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        return True
    # Qwen's configurations contain a window that the models do not use.
    has_window = config.get("sliding_window") and config.get("use_sliding_window", True)
    return bool(has_window) or any(config.get(key) for key in _MIXED)


def _kv_itemsize(kv_dtype: str) -> int:
    """0: unknown."""
    return 1 if kv_dtype.startswith(_BYTE_SIZED) else _ITEMSIZES.get(kv_dtype, 0)
