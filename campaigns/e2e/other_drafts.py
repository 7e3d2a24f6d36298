"""Drafts made from a target: its first layers (sometimes right), or its shape with other weights (never).

Knows Hugging Face folders; tensors are copied by name, nothing is loaded as a model.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def cut_draft(target: Path, num_layers: int, into: Path) -> Path:
    tensors = {name: tensor for name, tensor in _tensors(target).items() if _layer(name) < num_layers}
    return _write(target, into, tensors, num_layers)


def random_draft(target: Path, into: Path) -> Path:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: tensor
        if tensor.dim() == 1
        else torch.randn(tensor.shape, generator=generator).mul_(0.02).to(tensor.dtype)
        for name, tensor in _tensors(target).items()
    }
    return _write(target, into, tensors, None)


def blurred_draft(target: Path, share: float, into: Path) -> Path:
    """The target with some noise in every matrix: right more often or less, as the share says."""
    generator = torch.Generator().manual_seed(2)

    def blurred(tensor: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std() * share
        return tensor if tensor.dim() == 1 else (tensor.float() + noise).to(tensor.dtype)

    return _write(target, into, {name: blurred(tensor) for name, tensor in _tensors(target).items()}, None)


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def _layer(name: str) -> int:
    """The number of a tensor's layer; -1 for those outside the layers."""
    parts = name.split(".")
    return int(parts[2]) if parts[:2] == ["model", "layers"] else -1


def _write(target: Path, into: Path, tensors: dict[str, torch.Tensor], num_layers: int | None) -> Path:
    if (into / "model.safetensors").exists():
        return into
    into.mkdir(parents=True, exist_ok=True)
    for file in target.iterdir():
        if file.suffix in (".json", ".txt", ".jinja") and "index" not in file.name:
            shutil.copy(file, into / file.name)
    config = json.loads((target / "config.json").read_text())
    if num_layers is not None:
        config["num_hidden_layers"] = num_layers
        if config.get("layer_types"):
            config["layer_types"] = config["layer_types"][:num_layers]
    (into / "config.json").write_text(json.dumps(config))
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    return into
