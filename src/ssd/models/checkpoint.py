"""A checkpoint on disk: its configuration, its tokenizer, its weights.

Knows the two supported forms, a Hugging Face folder and a GGUF file. Downloads nothing: see hub.py.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from ssd.models.config import ModelConfig, model_config
from ssd.models.families import architecture_of_gguf, family_of
from ssd.models.gguf_header import GgufHeader, read_header
from ssd.models.gguf_weights import GgufSource
from ssd.models.weights import SafetensorsSource, WeightSource


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: Path
    config: ModelConfig
    folder: Path
    """Contains configuration and tokenizer; for a GGUF file, the extracted ones."""
    header: GgufHeader | None = None

    @property
    def name(self) -> str:
        """The model's name for users. In the hub's cache the folder itself is named after a commit."""
        if self.path.parent.name == "snapshots":
            return self.path.parent.parent.name.removeprefix("models--").replace("--", "/")
        return self.path.name

    def weights(self) -> WeightSource:
        if self.header is not None:
            return GgufSource(self.path, self.header, self.config)
        return SafetensorsSource(self.path)

    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)

    def end_ids(self, tokenizer: Any) -> tuple[int, ...]:
        """Tokens that end a generation, from the tokenizer, the generation config and the model config."""
        ids: list[int] = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        for name in ("generation_config.json", "config.json"):
            file = self.folder / name
            declared = json.loads(file.read_text()).get("eos_token_id") if file.is_file() else None
            if declared is not None:
                ids += declared if isinstance(declared, list) else [declared]
        return tuple(dict.fromkeys(ids))


def open_checkpoint(model: str) -> Checkpoint:
    path = Path(model).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return _open_gguf(path)
    if (path / "config.json").is_file():
        return _open_folder(path)
    if not path.exists():
        raise ValueError(f"no model at {model}: name a folder with config.json or a .gguf file")
    raise ValueError(
        f"{model} is neither a folder with config.json nor a .gguf file: name one, or a model on the hub"
    )


def _open_folder(path: Path) -> Checkpoint:
    try:
        architecture = _declared(json.loads((path / "config.json").read_text()))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path / 'config.json'} is not valid JSON: download it again") from error
    family_of(architecture)
    return Checkpoint(path, _config_in(path, architecture), path)


def _config_in(folder: Path, architecture: str) -> ModelConfig:
    # Without trust_remote_code=False, transformers would ask on the terminal whether to run a folder's code.
    return model_config(AutoConfig.from_pretrained(folder, trust_remote_code=False), architecture)


def _declared(config: dict[str, Any]) -> str:
    """The declared architecture; derived from the model type if missing, as in converted folders."""
    kind = config.get("model_type")
    named = config.get("architectures") or [f"{str(kind).capitalize()}ForCausalLM" if kind else "none"]
    return str(named[0])


def _open_gguf(path: Path) -> Checkpoint:
    header = read_header(path)
    architecture = architecture_of_gguf(header.architecture)
    if header.rope_scaling not in (None, "none"):
        raise ValueError(f"GGUF rope scaling {header.rope_scaling!r} is not supported")
    config = _config_in(header.folder, architecture)
    if "output.weight" not in header.tensors:
        config = replace(config, tie_embeddings=True)
    return Checkpoint(path, config, header.folder, header)
