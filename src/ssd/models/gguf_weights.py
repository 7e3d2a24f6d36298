"""Reads and dequantises the weights of a GGUF file, on as many threads as torch uses.

Knows llama.cpp's tensor names and its order of q and k rows. Does not know block formats: see gguf_blocks.py.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ssd.models.config import ModelConfig
from ssd.models.gguf_blocks import unpack
from ssd.models.gguf_header import GgufHeader

_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ROPE_FACTORS = "rope_freqs.weight"
_WEIGHTS_AT_ONCE = 1 << 18
"""Weights in a piece. Unpacking takes several passes: pieces that fit a cache take half the time."""


class GgufSource:
    def __init__(self, path: Path, header: GgufHeader, config: ModelConfig) -> None:
        self._path = path
        self._locations = header.tensors
        self._config = config
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        if any(each.offset + each.num_bytes > len(self._bytes) for each in self._locations.values()):
            raise ValueError(f"{path} is truncated: download it again")

    def names(self) -> frozenset[str]:
        return frozenset(hugging_face_name(name) for name in self._locations if name != _ROPE_FACTORS)

    def read(self, name: str) -> Tensor:
        tensor = self._dequantise(gguf_name(name))
        heads = self._heads_to_deinterleave(name)
        return deinterleave(tensor, heads) if heads else tensor

    def rope_factors(self) -> Tensor | None:
        return self._dequantise(_ROPE_FACTORS) if _ROPE_FACTORS in self._locations else None

    def _dequantise(self, name: str) -> Tensor:
        if name not in self._locations:
            raise ValueError(f"{self._path} has no tensor {name!r}: the file is incomplete")
        tensor = self._locations[name]
        raw = self._bytes[tensor.offset : tensor.offset + tensor.num_bytes]
        num_rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        rows = raw.reshape(num_rows, -1)
        values = np.empty((num_rows, tensor.shape[-1]), dtype=np.float32)
        step = max(1, _WEIGHTS_AT_ONCE // tensor.shape[-1])

        def unpack_some(first: int) -> None:
            some = slice(first, first + step)
            unpack(rows[some], tensor.encoding, values[some])

        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            list(threads.map(unpack_some, range(0, num_rows, step)))
        return torch.from_numpy(values).view(tensor.shape)

    def _heads_to_deinterleave(self, name: str) -> int:
        if not self._config.family.gguf_interleaves_qk:
            return 0
        if ".q_proj." in name:
            return self._config.num_heads
        return self._config.num_kv_heads if ".k_proj." in name else 0


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor with this Hugging Face name."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER_NAMES[module]}.{kind}"


def hugging_face_name(name: str) -> str:
    """The reverse of `gguf_name`; returns a name without a counterpart unchanged."""
    for ours, theirs in _TOP_NAMES.items():
        if name == theirs:
            return ours
    block, _, rest = name.partition(".")
    layer, _, rest = rest.partition(".")
    module, _, kind = rest.rpartition(".")
    for ours, theirs in _LAYER_NAMES.items():
        if block == "blk" and module == theirs:
            return f"model.layers.{layer}.{ours}.{kind}"
    return name


def deinterleave(tensor: Tensor, heads: int) -> Tensor:
    """Restores Hugging Face's order, in which the second rotary half of each head follows the first."""
    pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return pairs.swapaxes(1, 2).reshape(tensor.shape)
