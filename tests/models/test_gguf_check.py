"""Headers that claim more than their file holds are refused at once; so is code that a folder brings."""

import contextlib
import json
import shutil
import struct
from pathlib import Path

import pytest

from ssd.models import gguf_header
from ssd.models.checkpoint import open_checkpoint
from ssd.models.gguf_check import check_counts
from ssd.models.gguf_header import read_header

HUGE = 1 << 60


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def header(*pairs: bytes, num_tensors: int = 0, num_pairs: int | None = None) -> bytes:
    count = len(pairs) if num_pairs is None else num_pairs
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, count) + b"".join(pairs)


NESTED = b"".join(struct.pack("<IQ", 9, 1) for _ in range(50_000))
DAMAGED = {
    "pairs": header(num_pairs=HUGE),
    "tensors": header(num_tensors=HUGE),
    "a name": header(struct.pack("<Q", HUGE), num_pairs=1),
    "a text": header(text("x") + struct.pack("<IQ", 8, HUGE)),
    "numbers": header(text("x") + struct.pack("<IIQ", 9, 4, HUGE)),
    "texts": header(text("x") + struct.pack("<IIQ", 9, 8, HUGE)),
    "arrays in arrays": header(text("x") + struct.pack("<I", 9) + NESTED),
    "an unknown type": header(text("x") + struct.pack("<I", 77)),
    "an architecture that is a number": header(text("general.architecture") + struct.pack("<II", 4, 7)),
    "nothing": b"",
    "a half": header()[:13],
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_header_that_does_not_fit_its_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(DAMAGED[kind])
    with pytest.raises(ValueError, match="download it again"):
        open_checkpoint(str(path))


def test_a_header_that_fits_is_passed(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("list") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
        text("numbers") + struct.pack("<IIQ3I", 9, 4, 3, 1, 2, 3),
        text("yes") + struct.pack("<I?", 7, True),
    ]
    path.write_bytes(header(*pairs))
    check_counts(path)


def test_a_home_that_cannot_be_written_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_args: object, **_settings: object) -> Path:
        raise PermissionError(30, "Read-only file system", "/home/x/.cache")

    monkeypatch.setattr(gguf_header, "cached_assets_path", read_only)
    with pytest.raises(ValueError, match="set HF_HOME"):
        read_header(tmp_path / "model.gguf")


_CODE = """
from pathlib import Path
Path({!r}).write_text("ran")
from transformers import PreTrainedTokenizerFast
class Mine(PreTrainedTokenizerFast): ...
"""


@pytest.mark.parametrize("place", ["tokenizer_config.json", "config.json"])
def test_code_in_a_model_folder_is_not_run(
    tiny_llama: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a "y" either, which transformers asks for on the terminal where nothing is said."""
    folder, trace = tmp_path / "model", tmp_path / "trace"
    shutil.copytree(tiny_llama, folder)
    (folder / "mine.py").write_text(_CODE.format(str(trace)))
    settings = json.loads((folder / place).read_text())
    names = {"AutoTokenizer": [None, "mine.Mine"], "AutoConfig": "mine.Mine"}
    settings |= {"auto_map": names, "tokenizer_class": "Mine", "model_type": settings.get("model_type", "x")}
    (folder / place).write_text(json.dumps(settings))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with contextlib.suppress(ValueError):  # Refused, or loaded without it: either will do.
        open_checkpoint(str(folder)).tokenizer()
    assert not trace.exists()
