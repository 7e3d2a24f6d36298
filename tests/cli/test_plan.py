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
