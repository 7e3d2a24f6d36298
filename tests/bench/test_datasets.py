"""Prompts come from where the user says, and whatever is missing is said with a remedy."""

import json
import sys
from pathlib import Path

import pytest

from ssd.bench.datasets import NAMES, dataset_label, load_prompts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("humaneval", "gsm8k_test"):
        lines = [json.dumps({"text": f"{name} {number}"}) for number in range(5)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n\n")
    return tmp_path


def test_prompts_of_a_folder(folder: Path) -> None:
    assert load_prompts("humaneval", folder, 2) == ["humaneval 0", "humaneval 1"]
    assert load_prompts("gsm8k", folder, 2, first=3) == ["gsm8k_test 3", "gsm8k_test 4"]


def test_a_file_is_a_data_set(folder: Path) -> None:
    named = str(folder / "humaneval.jsonl")
    assert load_prompts(named, None, 1) == ["humaneval 0"]
    assert dataset_label(named) == "humaneval"


@pytest.mark.parametrize(
    ("name", "count", "said"),
    [
        ("humaneval", 6, "has 5 prompts, not 6"),
        ("alpaca", 1, r"has no alpaca\*.jsonl"),
        ("human-eval", 1, "use one of humaneval, alpaca, gsm8k, ultrafeedback"),
        ("nowhere.jsonl", 1, "no file nowhere.jsonl"),
    ],
)
def test_what_is_missing_is_said(folder: Path, name: str, count: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_prompts(name, folder, count)


@pytest.mark.parametrize("line", ["text", "{}", '{"text": ""}', '{"text": 1}', "[1]"])
def test_a_line_without_text_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"text": "good"}\n' + line)
    assert load_prompts(str(file), None, 1) == ["good"]
    with pytest.raises(ValueError, match="line 2"):
        load_prompts(str(file), None, 2)


def test_without_the_package_a_remedy_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    for name in NAMES:
        with pytest.raises(ValueError, match=r"pip install 'ssd-llm\[bench\]'.*--dataset-dir"):
            load_prompts(name, None, 1)
