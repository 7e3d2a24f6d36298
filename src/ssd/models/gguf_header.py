"""What a GGUF file says of itself: configuration, tokenizer and where its tensors lie.

Knows how to get these through transformers and the gguf package, and keeps the result in
the Hugging Face assets cache: a vocabulary of 150k tokens takes transformers some seconds,
reading the kept form under a second. Does not read tensors.
"""

import hashlib
import json
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub import cached_assets_path
from transformers import AutoConfig, AutoTokenizer

from ssd.models.gguf_check import check_counts
from ssd.models.gguf_reader import GgufReader, read_once

logger = logging.getLogger(__name__)

HEADER_FILE = "header.json"
_IDENTITY_BYTES = 1 << 20
_FORMAT = 1
"""Of the kept form; a change makes older entries unused."""


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """Where one tensor lies in the file and how it is encoded."""

    encoding: str
    shape: tuple[int, ...]
    """Rows first, as torch has it."""
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    architecture: str
    rope_scaling: str | None
    tensors: dict[str, TensorLocation]
    folder: Path
    """Holds the configuration and the tokenizer in transformers' own form."""


def read_header(path: Path) -> GgufHeader:
    cache = _cache_folder()
    folder = cache / _identity(path)
    kept = folder / HEADER_FILE
    if not kept.is_file():
        logger.info("reading the header of %s (once per file)", path.name)
        _keep(path, folder)
    fields = json.loads(kept.read_text())
    tensors = {
        name: TensorLocation(encoding, tuple(shape), offset, num_bytes)
        for name, (encoding, shape, offset, num_bytes) in fields["tensors"].items()
    }
    return GgufHeader(fields["architecture"], fields["rope_scaling"], tensors, folder)


def _cache_folder() -> Path:
    try:
        return cached_assets_path("ssd", namespace="gguf", subfolder="headers")
    except OSError as error:
        raise ValueError(
            f"what a GGUF file says of itself is kept in a folder that cannot be written ({error}): "
            "set HF_HOME to one that can"
        ) from error


def _identity(path: Path) -> str:
    """Changes whenever the file does, without reading all of it."""
    status = path.stat()
    versions = f"{_FORMAT} {transformers.__version__}"
    digest = hashlib.sha256(f"{versions} {status.st_size} {status.st_mtime_ns}".encode())
    with path.open("rb") as file:
        digest.update(file.read(_IDENTITY_BYTES))
    return digest.hexdigest()[:32]


def _keep(path: Path, folder: Path) -> None:
    """All or nothing, and whoever is first wins: target and draft may open one file at the same time."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        complete = Path(scratch) / "complete"
        _extract(path, complete)
        try:
            complete.rename(folder)
        except OSError:
            if not (folder / HEADER_FILE).is_file():
                raise


def _extract(path: Path, folder: Path) -> None:
    check_counts(path)
    try:
        reader = GgufReader(path)
    except (ValueError, IndexError, KeyError) as error:
        raise ValueError(f"{path} is not a GGUF file, or a damaged one: download it again") from error
    architecture = _field(reader, "general.architecture")
    fields = {
        "architecture": architecture,
        "rope_scaling": _field(reader, f"{architecture}.rope.scaling.type"),
        "tensors": {tensor.name: _place(tensor) for tensor in reader.tensors},
    }
    named: Any = {"gguf_file": path.name, "trust_remote_code": False}
    with read_once(reader):
        AutoConfig.from_pretrained(path.parent, **named).save_pretrained(folder)
        AutoTokenizer.from_pretrained(path.parent, **named).save_pretrained(folder)
    (folder / HEADER_FILE).write_text(json.dumps(fields))


def _place(tensor: Any) -> tuple[str, list[int], int, int]:
    shape = [int(size) for size in reversed(tensor.shape)]
    return tensor.tensor_type.name, shape, int(tensor.data_offset), int(tensor.n_bytes)


def _field(reader: Any, name: str) -> str | None:
    field = reader.get_field(name)
    return None if field is None else str(field.contents())
