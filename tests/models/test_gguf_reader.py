"""A header is read once, as the gguf package reads it, and never beyond the end of its file."""

import struct
from pathlib import Path
from typing import Any

import gguf
import pytest

from ssd.models import gguf_header
from ssd.models.gguf_header import read_header
from ssd.models.gguf_reader import GgufReader

WORDS = ["", "a", "Ġhello", "日本", "x" * 300]


def written(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", WORDS)
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0, 2.0])
    writer.add_array("tokenizer.ggml.token_type", [1, 2, 3])
    writer.add_array("some.flags", [True, False])
    writer.add_string("general.name", "a name")
    writer.add_uint32("llama.block_count", 7)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_fields_are_those_of_the_package(tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf")
    ours, theirs = GgufReader(path), gguf.GGUFReader(path)
    assert list(ours.fields) == list(theirs.fields)
    for name, field in theirs.fields.items():
        assert ours.fields[name].contents() == field.contents(), name
        assert ours.fields[name].types == field.types, name
        values = [list(field.parts[place]) for place in field.data]
        assert [list(ours.fields[name].parts[place]) for place in ours.fields[name].data] == values, name


class _Reads:
    """In place of transformers' classes: makes a reader of its own, as they do."""

    made: list[Any]

    @classmethod
    def from_pretrained(cls, folder: Path, *, gguf_file: str, trust_remote_code: bool) -> "_Reads":
        assert not trust_remote_code
        cls.made.append(gguf.GGUFReader(folder / gguf_file))
        return cls()

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)


def test_a_header_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(gguf_header, "cached_assets_path", lambda *_, **__: _shelf(tmp_path))
    monkeypatch.setattr(gguf_header, "AutoConfig", _Reads)
    monkeypatch.setattr(gguf_header, "AutoTokenizer", _Reads)
    _Reads.made, usual = [], gguf.GGUFReader
    assert read_header(written(tmp_path / "model.gguf")).architecture == "llama"
    first, second = _Reads.made
    assert first is second
    assert isinstance(first, GgufReader)
    assert gguf.GGUFReader is usual


def _shelf(folder: Path) -> Path:
    (folder / "shelf").mkdir(exist_ok=True)
    return folder / "shelf"


@pytest.mark.parametrize("claimed", [6, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("what", ["entries", "length"])
def test_counts_beyond_the_file_are_refused_at_once(tmp_path: Path, claimed: int, what: str) -> None:
    """Both the number of strings in an array, and the length of its first one."""
    path = written(tmp_path / "model.gguf")
    content = bytearray(path.read_bytes())
    place = content.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    place += 0 if what == "entries" else 8
    assert content[place] == (len(WORDS) if what == "entries" else 0)
    content[place : place + 8] = struct.pack("<Q", claimed)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a GGUF file, or a damaged one"):
        gguf_header._extract(path, tmp_path / "out")
