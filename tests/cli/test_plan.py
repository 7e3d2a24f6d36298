"""`ssd plan` as users run it."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ssd.cli.main import app


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
    ],
)
def test_mistakes_are_answered_with_a_remedy(arguments: tuple[str, ...], message: str) -> None:
    done = ssd_plan(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
