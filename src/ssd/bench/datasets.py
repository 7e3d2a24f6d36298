"""Loads prompts to measure with: from a folder, a file or the hub.

Knows four data sets that are common in the field, their locations on the hub and the form of their prompts.
Does not know models: prompts are plain text.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ssd.version import how_to_install


@dataclass(frozen=True, slots=True)
class _OnTheHub:
    """The location of a data set on the hub, and how to get the prompt from a row."""

    repo: str
    split: str
    prompt: Callable[[dict[str, Any]], str]
    config: str | None = None


def _instruction(row: dict[str, Any]) -> str:
    return "\n\n".join(filter(None, (row["instruction"], row["input"])))


_HUB = {
    "humaneval": _OnTheHub("openai/openai_humaneval", "test", lambda row: str(row["prompt"])),
    "alpaca": _OnTheHub("tatsu-lab/alpaca", "train", _instruction),
    "gsm8k": _OnTheHub("openai/gsm8k", "test", lambda row: str(row["question"]), config="main"),
    "ultrafeedback": _OnTheHub(
        "HuggingFaceH4/ultrafeedback_binarized", "test_prefs", lambda row: str(row["prompt"])
    ),
}
NAMES = tuple(_HUB)


def digest_of(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def load_prompts(name: str, folder: Path | None, count: int, first: int = 0) -> list[str]:
    """`count` prompts of a data set, or of a .jsonl file with {"text": …} lines, from index `first` on."""
    prompts = list(islice(_prompts(name, folder), first, first + count))
    if len(prompts) < count:
        raise ValueError(
            f"{name} has {first + len(prompts)} prompts, not {first + count}: ask for fewer (--num-prompts)"
        )
    return prompts


def dataset_label(name: str) -> str:
    """The name of a data set in records; for a file, the file's name."""
    return Path(name).stem if name.endswith(".jsonl") else name


def _prompts(name: str, folder: Path | None) -> Iterator[str]:
    if name.endswith(".jsonl"):
        return _from_file(Path(name).expanduser())
    if name not in _HUB:
        raise ValueError(f"no data set {name!r}: use one of {', '.join(_HUB)}, or a .jsonl file")
    if folder is None:
        return _from_hub(name, _HUB[name])
    files = sorted(folder.expanduser().glob(f"{name}*.jsonl"))
    if not files:
        raise ValueError(
            f'{folder} has no {name}*.jsonl: put one there, with {{"text": …}} lines, '
            "or leave --dataset-dir and SSD_DATASET_DIR out to take it from the hub"
        )
    return _from_file(files[0])


def _from_file(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise ValueError(f'no file {path}: name a .jsonl file with one {{"text": …}} a line')
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _text_of(line, f"{path}, line {number}")


def _text_of(line: str, place: str) -> str:
    try:
        text = json.loads(line)["text"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f'{place}: not a JSON object with a "text": write {{"text": …}} on each line'
        ) from error
    if not isinstance(text, str) or not text:
        raise ValueError(f'{place}: its "text" is empty or no text: write some, or remove the line')
    return text


def _from_hub(name: str, where: _OnTheHub) -> Iterator[str]:
    folder_hint = f"give a folder that has {name}.jsonl by --dataset-dir or SSD_DATASET_DIR"
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ValueError(
            f"{name} comes from the hub by the package datasets: {how_to_install('bench')}, or {folder_hint}"
        ) from error
    try:
        rows = load_dataset(where.repo, where.config, split=where.split)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{name} could not be loaded from the hub ({reason}): {folder_hint}") from error
    return (where.prompt(row) for row in rows)
