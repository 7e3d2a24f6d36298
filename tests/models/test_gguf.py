"""GGUF: names, row order, encodings, scaling factors, and the kept header."""

import threading
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from ssd.models import gguf_header, gguf_weights
from ssd.models.checkpoint import open_checkpoint
from ssd.models.gguf_blocks import unpack
from ssd.models.gguf_header import GgufHeader, TensorLocation, read_header
from ssd.models.gguf_weights import GgufSource, deinterleave, gguf_name, hugging_face_name
from tests.tiny import write_checkpoint


def write_gguf(path: Path, tensors: dict[str, np.ndarray], encoding: gguf.GGMLQuantizationType) -> GgufHeader:
    """A GGUF file with these tensors, and the header a reader would find in it."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, values in tensors.items():
        quantised = gguf.quantize(values, encoding)
        writer.add_tensor(name, quantised, raw_dtype=encoding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    places = {
        tensor.name: TensorLocation(
            tensor.tensor_type.name,
            tuple(int(size) for size in reversed(tensor.shape)),
            int(tensor.data_offset),
            int(tensor.n_bytes),
        )
        for tensor in gguf.GGUFReader(path).tensors
    }
    return GgufHeader("llama", None, places, path.parent)


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
def test_tensors_are_what_the_package_dequantises(tmp_path: Path, encoding: str) -> None:
    config = open_checkpoint(str(write_checkpoint("qwen2", tmp_path))).config
    kind = gguf.GGMLQuantizationType[encoding]
    values = np.random.default_rng(0).standard_normal((600, 64)).astype(np.float32)
    path = tmp_path / "m.gguf"
    header = write_gguf(path, {"output.weight": values, "output_norm.weight": values[0]}, kind)
    source = GgufSource(path, header, config)
    whole = gguf.dequantize(gguf.quantize(values, kind), kind)
    assert np.array_equal(source.read("lm_head.weight").numpy(), whole)
    assert source.read("model.norm.weight").shape == (64,)


def test_pieces_of_a_tensor_are_unpacked_by_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file was unpacked by one core, however many there are. Here nobody goes on alone."""
    config = open_checkpoint(str(write_checkpoint("qwen2", tmp_path))).config
    values = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    path = tmp_path / "m.gguf"
    source = GgufSource(
        path, write_gguf(path, {"output.weight": values}, gguf.GGMLQuantizationType.F32), config
    )
    together = threading.Barrier(2, timeout=30)

    def unpack_beside_another(*arguments: Any) -> None:
        together.wait()
        unpack(*arguments)

    monkeypatch.setattr(gguf_weights, "_WEIGHTS_AT_ONCE", 64 * 8)
    monkeypatch.setattr(gguf_weights, "unpack", unpack_beside_another)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert np.array_equal(source.read("lm_head.weight").numpy(), values)


def test_llama_rows_are_put_back_in_order(tmp_path: Path) -> None:
    """llama.cpp's conversion interleaves q and k rows; reading undoes exactly that."""
    config = open_checkpoint(str(write_checkpoint("llama3", tmp_path))).config
    rows, heads = 64, config.num_heads
    original = np.arange(rows * 64, dtype=np.float32).reshape(rows, 64)
    converted = original.reshape(heads, 2, rows // heads // 2, 64).swapaxes(1, 2).reshape(rows, 64)
    path = tmp_path / "m.gguf"
    header = write_gguf(path, {"blk.0.attn_q.weight": converted}, gguf.GGMLQuantizationType.F32)
    read = GgufSource(path, header, config).read("model.layers.0.self_attn.q_proj.weight")
    assert np.array_equal(read.numpy(), original)
    assert not np.array_equal(converted, original)


def test_deinterleave_works_on_biases() -> None:
    assert deinterleave(torch.tensor([0.0, 2, 1, 3]), 1).tolist() == [0, 1, 2, 3]


def test_rope_factors_are_found(tmp_path: Path) -> None:
    """Llama 3.1 files carry their scaling as a tensor; dropping it would go unnoticed on short prompts."""
    config = open_checkpoint(str(write_checkpoint("llama3", tmp_path))).config
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    path = tmp_path / "m.gguf"
    header = write_gguf(path, {"rope_freqs.weight": factors}, gguf.GGMLQuantizationType.F32)
    source = GgufSource(path, header, config)
    found = source.rope_factors()
    assert found is not None
    assert np.array_equal(found.numpy(), factors)
    assert source.names() == frozenset()


def test_names() -> None:
    assert gguf_name("model.embed_tokens.weight") == "token_embd.weight"
    assert gguf_name("model.layers.12.mlp.down_proj.weight") == "blk.12.ffn_down.weight"
    assert gguf_name("model.layers.3.self_attn.k_proj.bias") == "blk.3.attn_k.bias"
    for name in ("lm_head.weight", "model.layers.3.self_attn.k_proj.bias"):
        assert hugging_face_name(gguf_name(name)) == name
    assert hugging_face_name("blk.0.attn_rot_embd") == "blk.0.attn_rot_embd"


@pytest.mark.models
def test_a_header_is_parsed_once(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_header(smollm2)

    def fail(*_: object) -> None:
        raise AssertionError("the header was parsed again")

    monkeypatch.setattr(gguf_header, "_cache", fail)
    assert read_header(smollm2) == first
    assert first.architecture == "llama"


@pytest.mark.models
def test_the_kept_tokenizer_is_the_files_own(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    kept = open_checkpoint(str(smollm2)).tokenizer()
    own = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    text = "def f(x):\n    return 'naïve café' # 你好 🙂 <|im_start|>user"
    assert kept(text).input_ids == own(text).input_ids
    assert kept.decode(kept(text).input_ids) == own.decode(own(text).input_ids)
    messages = [{"role": "user", "content": "Hi"}]
    assert kept.apply_chat_template(messages, tokenize=False) == own.apply_chat_template(
        messages, tokenize=False
    )
