"""Weights out of a GGUF file, dequantised as they are read, by as many threads as torch has.

Knows llama.cpp's tensor names and its order of q and k rows. The block formats
themselves are the business of gguf_blocks.py.
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
"""Unpacking takes several passes: pieces that fit a cache take half the time, and threads share them out."""


class GgufSource:
    def __init__(self, path: Path, header: GgufHeader, config: ModelConfig) -> None:
        self._path = path
        self._places = header.tensors
        self._config = config
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        if any(place.offset + place.num_bytes > len(self._bytes) for place in self._places.values()):
            raise ValueError(f"{path} is truncated: download it again")

    def names(self) -> frozenset[str]:
        return frozenset(hugging_face_name(name) for name in self._places if name != _ROPE_FACTORS)

    def read(self, name: str) -> Tensor:
        tensor = self._dequantise(gguf_name(name))
        heads = self._heads_to_deinterleave(name)
        return deinterleave(tensor, heads) if heads else tensor

    def rope_factors(self) -> Tensor | None:
        return self._dequantise(_ROPE_FACTORS) if _ROPE_FACTORS in self._places else None

    def _dequantise(self, name: str) -> Tensor:
        if name not in self._places:
            raise ValueError(f"{self._path} has no tensor {name!r}: the file is incomplete")
        place = self._places[name]
        raw = self._bytes[place.offset : place.offset + place.num_bytes]
        num_rows = place.shape[0] if len(place.shape) > 1 else 1
        rows = raw.reshape(num_rows, -1)
        values = np.empty((num_rows, place.shape[-1]), dtype=np.float32)
        step = max(1, _WEIGHTS_AT_ONCE // place.shape[-1])

        def unpack_some(first: int) -> None:
            some = slice(first, first + step)
            unpack(rows[some], place.encoding, values[some])

        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            list(threads.map(unpack_some, range(0, num_rows, step)))
        return torch.from_numpy(values).view(place.shape)

    def _heads_to_deinterleave(self, name: str) -> int:
        if not self._config.family.gguf_interleaves_qk:
            return 0
        if ".q_proj." in name:
            return self._config.num_heads
        return self._config.num_kv_heads if ".k_proj." in name else 0


def gguf_name(name: str) -> str:
    """The name llama.cpp gives a Hugging Face tensor."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER_NAMES[module]}.{kind}"


def hugging_face_name(name: str) -> str:
    """The reverse of `gguf_name`; a name without a counterpart stays as it is."""
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
    """Puts the two rotary halves of each head back after one another."""
    pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return pairs.swapaxes(1, 2).reshape(tensor.shape)
