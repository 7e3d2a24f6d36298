"""What the decoder cannot compute exactly is refused, by name, with what to do."""

import json
from pathlib import Path
from typing import Any

import pytest

from ssd import LLM
from ssd.models.checkpoint import open_checkpoint
from ssd.models.families import KNOWN_ARCHITECTURES, architecture_of_gguf
from tests.tiny import write_checkpoint


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def scaled(kind: str) -> dict[str, Any]:
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
    return {"rope_parameters": {**rope, "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}}


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("qwen2", {"architectures": ["MambaForCausalLM"]}, ("MambaForCausalLM", *KNOWN_ARCHITECTURES)),
        ("mistral", {"sliding_window": 4096}, ("sliding window of 4096",)),
        ("qwen2", {"quantization_config": {"quant_method": "awq", "bits": 4}}, ("awq",)),
        *(("llama3", scaled(kind), (f"rope scaling '{kind}'",)) for kind in ("yarn", "dynamic", "longrope")),
    ],
)
def test_what_a_config_asks_for_and_we_have_not_is_refused_by_name(
    tmp_path: Path, kind: str, changes: dict[str, Any], said: tuple[str, ...]
) -> None:
    write_checkpoint(kind, tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=said[0]) as error:
        open_checkpoint(str(tmp_path))
    assert [each for each in said if each not in str(error.value)] == []


def test_a_folder_that_names_no_architecture_is_known_by_its_type(tmp_path: Path) -> None:
    """Its path does not choose the architecture, and a sliding window that is not used does no harm."""
    tmp_path = write_checkpoint("qwen2", tmp_path / "Llama-3.1-8B-Mistral")
    edit_config(tmp_path, architectures=None, sliding_window=4096, use_sliding_window=False)
    assert open_checkpoint(str(tmp_path)).config.family.architecture == "Qwen2ForCausalLM"
    edit_config(tmp_path, model_type="mamba")
    with pytest.raises(ValueError, match="MambaForCausalLM"):
        open_checkpoint(str(tmp_path))


def test_rope_scaling_in_the_older_spelling_is_not_dropped(tmp_path: Path) -> None:
    write_checkpoint("llama3", tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    rope = fields.pop("rope_parameters")
    fields["rope_theta"] = rope.pop("rope_theta")
    fields["rope_scaling"] = rope
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = open_checkpoint(str(tmp_path)).config.rope
    assert (config.kind, config.factor, config.original_max_position) == ("llama3", 8.0, 32)


def test_unknown_gguf_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="gemma2"):
        architecture_of_gguf("gemma2")


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    write_checkpoint("qwen2", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pickled"):
        open_checkpoint(str(tmp_path)).weights()


def test_tensors_without_a_place_are_refused(tmp_path: Path) -> None:
    """A bias that the configuration does not mention would otherwise be dropped, and the logits be wrong."""
    write_checkpoint("llama-biased", tmp_path)
    edit_config(tmp_path, attention_bias=False, mlp_bias=False)
    with pytest.raises(ValueError, match="does not use, such as"):
        LLM(str(tmp_path), device="cpu", show_progress=False)


def test_damaged_files_are_named(tmp_path: Path, smollm2: Path) -> None:
    (tmp_path / "junk.gguf").write_text("this is no GGUF file")
    (tmp_path / "short.gguf").write_bytes(smollm2.read_bytes()[:40_000_000])
    folder = write_checkpoint("qwen2", tmp_path / "folder")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:1000])
    for name in ("junk.gguf", "short.gguf", "folder"):
        with pytest.raises(ValueError, match="download it again"):
            open_checkpoint(str(tmp_path / name)).weights()
    (folder / "config.json").write_text("{bad")
    with pytest.raises(ValueError, match="not valid JSON"):
        open_checkpoint(str(folder))


def test_incomplete_shards_are_named(tmp_path: Path) -> None:
    write_checkpoint("qwen2", tmp_path, max_shard_size="200KB")
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ValueError, match=lost.name):
        open_checkpoint(str(tmp_path)).weights()
