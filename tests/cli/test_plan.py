"""`ssd plan` as users run it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ssd.cli.main import app
from ssd.planning.measured import SelfTestRecord


def ssd_plan(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments])


def as_json(*arguments: str) -> Any:
    done = ssd_plan(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_a_replica_in_words_and_figures() -> None:
    arguments = ("--target", "8B", "--draft", "1B", "--acceptance", "0.8", "--devices", "2")
    done = ssd_plan(*arguments)
    assert done.exit_code == 0, done.stderr
    assert "One more device for the draft" in done.stdout
    assert "vLLM as the target" in " ".join(done.stdout.split())
    alone = ssd_plan("--target", "8B", "--devices", "1")
    assert "vLLM as the target" not in " ".join(alone.stdout.split())
    content = as_json(*arguments)
    ways = {each["way"]: each for each in content["offers"] if each["tp"] == 1}
    assert ways["ssd"]["per_user"] > ways["ar"]["per_user"]
    assert ways["ssd"]["num_devices"] == 2


def test_figures_of_a_self_test_take_the_place_of_assumed_ones(tmp_path: Path) -> None:
    h100 = SelfTestRecord(
        device="NVIDIA H100 80GB HBM3", bandwidth=2.0e12, launch=5e-6, captured_launch=1e-6,
        launches_per_layer=20, launches_beside=5, host=2e-3, target_seconds={1: 0.1}, draft_seconds={1: 0.01},
    )  # fmt: skip
    h100.write(tmp_path / "h100.json")
    arguments = ("--target", "8B", "--devices", "2")
    assumed = as_json(*arguments)
    found = as_json(*arguments, "--measured", str(tmp_path / "h100.json"))
    ar, measured = (
        next(each for each in content["offers"] if each["way"] == "ar" and each["tp"] == 1)
        for content in (assumed, found)
    )
    assert measured["rate"] < ar["rate"], "memory is slower, and the host has its time"
    said = " ".join(found["advice"])
    assert "20 launches a layer and 5 beside them, 1.0 µs each (measured on NVIDIA H100" in said
    assert "the host 2.00 ms a round" in said
    assert "sd its own speculation" in said
    refused = ssd_plan("--measured", str(tmp_path / "none.json"))
    assert refused.exit_code == 2
    assert "--selftest --record FILE" in " ".join(refused.stderr.split())


def test_the_target_is_an_argument_too_and_may_be_a_name_of_the_hub() -> None:
    by_flag = as_json("--target", "qwen3-8b", "--draft", "qwen3-0.6b")
    assert as_json("qwen3-8b", "--draft", "qwen3-0.6b") == by_flag
    assert as_json("Qwen/Qwen3-8B", "--draft", "Qwen/Qwen3-0.6B") == by_flag
    refused = ssd_plan("8B", "--target", "70B")
    assert refused.exit_code == 2
    assert "name one" in refused.stderr


def test_the_table_of_devices() -> None:
    done = ssd_plan("--list")
    assert "h100" in done.stdout
    assert "llama-3.1-70b" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--hardware", "h10"), "did you mean 'h100'"),
        (("--target", "405B", "--devices", "4"), "does not fit"),
        (("--acceptance", "1.5"), "from 0 to 1"),
    ],
)
def test_mistakes_are_answered_with_a_remedy(arguments: tuple[str, ...], message: str) -> None:
    done = ssd_plan(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
