"""A real vLLM, a real draft: the same tokens as without it, hits, and a draft that dies and comes back."""

from pathlib import Path
from typing import Any

import pytest

from tests.vllm import programs

pytestmark = [pytest.mark.vllm, pytest.mark.models]


def run(folder: Path, record: Path, *options: str) -> list[dict[str, Any]]:
    usual = ("--target", folder, "--draft", folder, "--prompts", "3", "--tokens", "16", "--patience", "1")
    return programs.run("equality", record, *usual, *options, timeout=800)


def test_every_token_is_the_same_with_and_without_the_draft(folder: Path, tmp_path: Path) -> None:
    found = run(folder, tmp_path / "record", "--temperatures", "0", "0.7", "--faults", "1")
    assert [each["case"] for each in found] == [
        "T=0.0 seeded",
        "T=0.7 seeded",
        "T=0.7 unseeded",
        "grammar",
        "truncated, penalties, minimum",
        "fault 0",
    ]
    for each in found:
        assert each["equal"] == each["texts"], each
    # Of a single case there may be none where other programs have the cores.
    assert sum(each["hits"] for each in found[:-1]) > 0
    assert sum(each["accepted"] for each in found[:-1]) > 0
    assert found[-1]["hits while away"] == 0
    assert found[-1]["hits"] > 0


def test_padded_proposals_change_no_token(folder: Path, tmp_path: Path) -> None:
    found = run(folder, tmp_path / "record", "--temperatures", "0.7", "--padded", "--lookahead", "2")
    for each in found:
        assert each["equal"] == each["texts"], each
    assert sum(each["padding"] for each in found) > 0
