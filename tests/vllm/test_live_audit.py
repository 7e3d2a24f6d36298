"""A real vLLM that preempts, chunks, caches, aborts and uses ids again, in the small form of the audit."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tiny import write_checkpoint
from tests.vllm import programs

pytestmark = pytest.mark.vllm


def test_the_draft_holds_what_requests_say(tmp_path: Path) -> None:
    """The program ends with an error where a text is not its request's, or where something never happened."""
    if find_spec("vllm") is None:
        pytest.skip("no vLLM")
    model = write_checkpoint("qwen3", tmp_path / "model")
    options = ("--target", model, "--draft", model, "--requests", "26", "--seed", "1")
    [found] = programs.run("audit", tmp_path / "record", *options, timeout=600)
    assert found["compared"] > 100
    assert found["equal"] == found["texts"]
    assert found["open at the end"] == 0
