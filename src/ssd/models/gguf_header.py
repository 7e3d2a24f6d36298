"""Reads a GGUF file's header: configuration, tokenizer and the locations of its tensors.

Uses transformers and the gguf package, and caches the result in the Hugging Face assets cache: transformers
needs several seconds for a vocabulary of 150k tokens, reading the cached form less than one. Does not read
tensors.
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
"""Version of the cached form; a change makes older entries unused."""


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """The location of a tensor in the file, and its encoding."""

    encoding: str
    shape: tuple[int, ...]
    """Rows first, as in torch."""
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    architecture: str
    rope_scaling: str | None
    tensors: dict[str, TensorLocation]
    folder: Path
    """Contains the configuration and the tokenizer in transformers' format."""


def read_header(path: Path) -> GgufHeader:
    cache = _cache_folder()
    folder = cache / _identity(path)
    header_file = folder / HEADER_FILE
    if not header_file.is_file():
        logger.info("reading the header of %s (once per file)", path.name)
        _cache(path, folder)
    fields = json.loads(header_file.read_text())
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
            f"the cache folder for GGUF headers cannot be written ({error}): set HF_HOME to a writable folder"
        ) from error


def _identity(path: Path) -> str:
    """A key that changes with the file, from its size, time and first bytes."""
    status = path.stat()
    versions = f"{_FORMAT} {transformers.__version__}"
    digest = hashlib.sha256(f"{versions} {status.st_size} {status.st_mtime_ns}".encode())
    with path.open("rb") as file:
        digest.update(file.read(_IDENTITY_BYTES))
    return digest.hexdigest()[:32]


def _cache(path: Path, folder: Path) -> None:
    """Writes the folder atomically: target and draft may read the same file at the same time."""
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
        "tensors": {tensor.name: _location(tensor) for tensor in reader.tensors},
    }
    options: Any = {"gguf_file": path.name, "trust_remote_code": False}
    with read_once(reader):
        AutoConfig.from_pretrained(path.parent, **options).save_pretrained(folder)
        AutoTokenizer.from_pretrained(path.parent, **options).save_pretrained(folder)
    (folder / HEADER_FILE).write_text(json.dumps(fields))


def _location(tensor: Any) -> tuple[str, list[int], int, int]:
    shape = [int(size) for size in reversed(tensor.shape)]
    return tensor.tensor_type.name, shape, int(tensor.data_offset), int(tensor.n_bytes)


def _field(reader: Any, name: str) -> str | None:
    field = reader.get_field(name)
    return None if field is None else str(field.contents())
