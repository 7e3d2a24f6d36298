"""`ssd plan` as users run it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ssd.cli.main import app
from ssd.planning.measured import Measured


def ssd_plan(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments])


def as_json(*arguments: str) -> Any:
    done = ssd_plan(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_a_replica_in_words_and_figures() -> None:
    arguments = ("--target", "8B", "--draft", "1B", "--acceptance", "0.8", "--devices", "2", "--price", "3")
    done = ssd_plan(*arguments)
    assert done.exit_code == 0, done.stderr
    assert "One more device for the draft" in done.stdout
    assert "vLLM as the target" in " ".join(done.stdout.split())
    alone = ssd_plan("--target", "8B", "--devices", "1")
    assert "vLLM" not in alone.stdout
    content = as_json(*arguments)
    ways = {each["way"]: each for each in content["offers"] if each["tp"] == 1}
    assert ways["ssd"]["per_user"] > ways["ar"]["per_user"]
    assert ways["ssd"]["price"] == 6


def test_figures_of_a_self_test_take_the_place_of_assumed_ones(tmp_path: Path) -> None:
    h100 = Measured(
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


POOL = ("--target", "8B", "--draft", "1B", "--acceptance", "0.8", "--price", "3", "--pool", "16")


def test_a_pool_says_how_many_drafts_at_what_price_and_what_breaks_first() -> None:
    done = ssd_plan(*POOL)
    assert done.exit_code == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "What breaks first: " in said
    assert "benchmarks.draft_host" in said, "a figure without its source"
    content = as_json(*POOL)
    assert [(row["sharers"], row["num_drafts"]) for row in content["pool"]] == [
        (1, 16), (2, 8), (4, 4), (8, 2), (16, 1),
    ]  # fmt: skip
    alone, *_, all_of_them = content["pool"]
    assert all_of_them["host"] > alone["host"]
    assert all_of_them["offer"]["num_devices"] == 1 + 1 / 16
    assert content["best"]["per_million"] <= alone["per_million"]


def test_few_seats_break_first_and_a_slow_host_costs_speed(tmp_path: Path) -> None:
    content = as_json(*POOL, "--seats", "4")
    assert (content["limits"][0]["what"], content["limits"][0]["most"]) == ("the draft's seats", 4)
    assert content["pool"][-1]["sharers"] == 4
    slow = tmp_path / "slow.toml"
    slow.write_text("[draft]\nfixed = 0\nper_sequence = 0.7\n[target]\nfixed = 0\nper_sequence = 0\n")
    content = as_json(*POOL, "--hosts", str(slow))
    assert content["limits"][0]["what"] == "speed, by the draft's host"


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
        (("--fleet", "1000", "--devices", "4"), "--fleet does not listen to --devices"),
        (("--fleet", "1000", "--batch", "1"), "--fleet does not listen to --batch"),
        (("--batches", "--batch", "4"), "--batches does not listen to --batch"),
        (("--batches", "--fleet", "4"), "ask one at a time"),
        (("--pool", "4", "--fleet", "4"), "ask one at a time"),
        (("--seats", "4"), "are for a pool"),
        (("--pool", "4", "--hosts", "nowhere.toml"), "write [draft] and [target]"),
        (("--pool", "4", "--batch", "128"), "cannot serve one target of 128 sequences"),
    ],
)
def test_mistakes_are_answered_with_a_remedy(arguments: tuple[str, ...], message: str) -> None:
    done = ssd_plan(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
