"""How large a model of any architecture is, as it is stored: by its configuration and its files.

For models that somebody else loads, such as vLLM. Reads sizes and one JSON file, no weights. A model on
the hub that is not here yet is asked about there.
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
"""In the order in which vLLM looks for them; a folder may have the same weights in several forms."""
_ITEMSIZES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
_BYTE_SIZED = ("fp8", "int8")
"""Number formats of keys and values, as vLLM names them; each has several forms."""
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
"""Keys of configurations in which layers keep less than all keys and values of all heads."""
_UNREACHED: type[Exception] = HfHubHTTPError.__bases__[0]
"""What the hub's client raises without a network: an error of httpx or httpx2, by its version."""


@dataclass(frozen=True, slots=True)
class StoredSize:
    weights: int
    """Bytes, in the number format asked for."""
    kv_per_token: int
    """Bytes of keys and values; 0: not known."""
    longest: int
    """Tokens; 0: not known."""


def stored_size(
    model: str, *, hf_cache: str | None, dtype: str | None, kv_dtype: str | None = None
) -> StoredSize | None:
    """None: there are no weights, or nobody tells.

    `dtype`: what it is loaded as; None: as declared. `kv_dtype`: likewise of keys and values; None: as it.
    """
    found = _files(Path(model).expanduser(), model, hf_cache)
    if found is None:
        return None
    sizes, config = found
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
    """Sizes of its files by their names, and its configuration."""
    if path.is_dir():
        return _in_folder(path)
    name = parse_hub_name(model)
    if name is None:
        return None
    where: dict[str, Any] = {"revision": name.revision, "cache_dir": hf_cache}
    try:
        kept = _in_folder(Path(snapshot_download(name.repo, local_files_only=True, **where)))
        if kept is not None and _weights(kept[0]):
            return kept
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
    """Of the first form that is there; `consolidated…` are the same weights once more."""
    for suffix in _WEIGHTS:
        named = {name: size for name, size in sizes.items() if name.endswith(suffix) and "/" not in name}
        sharded = {name: size for name, size in named.items() if not name.startswith("consolidated")}
        if found := sum((sharded or named).values()):
            return found
    return 0


def _kv_per_token(config: Mapping[str, Any], item: int) -> int:
    """0 where keys are not kept as heads × size for every layer and every token."""
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    hidden = config.get("hidden_size")
    if not (layers and heads and hidden) or _forgets(config):
        return 0
    size = config.get("head_dim") or hidden // heads
    return int(2 * layers * (config.get("num_key_value_heads") or heads) * size * item)


def _forgets(config: Mapping[str, Any]) -> bool:
    """Whether some layers keep a window, a state or a compressed form in place of all keys and values."""
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        return True
    # Qwen's name a window that their models do not use.
    has_window = config.get("sliding_window") and config.get("use_sliding_window", True)
    return bool(has_window) or any(config.get(key) for key in _MIXED)


def _kv_itemsize(kv_dtype: str) -> int:
    """0: not known."""
    return 1 if kv_dtype.startswith(_BYTE_SIZED) else _ITEMSIZES.get(kv_dtype, 0)
