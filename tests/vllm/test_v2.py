"""vLLM's V2 model runner, in a stand-in for a GPU: the tokens of stock vLLM, with and without a draft."""

from pathlib import Path
from typing import Any

import pytest

from tests.vllm import programs

pytestmark = [pytest.mark.vllm, pytest.mark.models]


CASES = ("--cases", "T=", "grammar", "truncated")
USUAL = (
    "--runner",
    "v2",
    "--prompts",
    "2",
    "--tokens",
    "12",
    "--patience",
    "1",
    "--temperatures",
    "0.8",
    *CASES,
)
SEEDED = ["T=0.8 seeded", "grammar", "truncated, penalties, minimum"]


@pytest.fixture(scope="module")
def found(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    record = tmp_path_factory.mktemp("v2") / "record"
    usual = ("--target", folder, "--draft", folder, *USUAL)
    kinds: tuple[tuple[str, ...], ...] = ((), ("--stock",), ("--control",))
    for kind in kinds:
        lines = programs.run("equality", record, *usual, *kind, timeout=600, is_v2=True)
    return {each["case"]: each for each in lines}


def test_a_draft_changes_no_token(found: dict[str, dict[str, Any]]) -> None:
    drafted = {name: each for name, each in found.items() if "drafted" in each}
    assert sorted(drafted) == sorted([*SEEDED, "T=0.8 unseeded"])
    for each in drafted.values():
        assert each["equal"] == each["texts"], each
    # Of a single case there may be none where other programs have the cores.
    assert sum(each["hits"] for each in drafted.values()) > 0
    assert sum(each["accepted"] for each in drafted.values()) > 0


def test_the_tokens_are_those_of_stock_vllm(found: dict[str, dict[str, Any]]) -> None:
    """Seed for seed, with truncation, penalties and a grammar."""
    stock = {name: each for name, each in found.items() if name.startswith("stock vLLM")}
    assert sorted(stock) == sorted(f"stock vLLM, {name}" for name in SEEDED)
    for each in stock.values():
        assert each["equal"] == each["texts"], each


def test_asynchronous_scheduling_changes_no_token(
    folder: Path, tmp_path: Path, found: dict[str, dict[str, Any]]
) -> None:
    """Tokens are chosen on the device; those of the run above are those of stock vLLM."""
    models = ("--target", folder, "--draft", folder)
    lines = programs.run(
        "equality", tmp_path / "record", *models, *USUAL, "--asynchronous", timeout=600, is_v2=True
    )
    assert [each["case"] for each in lines] == SEEDED
    for each in lines:
        assert each["equal"] == each["texts"], each
        assert each["tokens"] == found[each["case"]]["tokens"]
    assert sum(each["accepted"] for each in lines) > 0


def test_the_comparison_notices_another_rule(found: dict[str, dict[str, Any]]) -> None:
    """vLLM's own speculation accepts by other draws: its tokens have the same distribution, not the same
    values."""
    control = [each for name, each in found.items() if name.startswith("vLLM's own speculation")]
    assert sum(each["equal"] for each in control) < sum(each["texts"] for each in control)
