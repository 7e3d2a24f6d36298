"""A target and a draft that agree on every token, although the draft has a fraction of its layers.

The target's later layers add nothing to what the first ones give: they cost time and change no number. With
such a pair a miss says that the draft was late or disturbed, never that it guessed wrongly.
"""

import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel


def write_agreeing_pair(folder: Path, into: Path, *, num_layers: int) -> tuple[Path, Path]:
    """Target and draft from the first `num_layers` layers of a Llama-like model."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for layer in model.model.layers[num_layers:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    target = _save(model, folder, into / "target")
    model.model.layers = model.model.layers[:num_layers]
    model.config.num_hidden_layers = num_layers
    return target, _save(model, folder, into / "draft")


def _save(model: PreTrainedModel, source: Path, into: Path) -> Path:
    model.save_pretrained(into)
    for file in (*source.glob("token*"), *source.glob("*.jinja")):
        shutil.copy(file, into)
    return into
