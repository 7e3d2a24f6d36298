"""A real vLLM that preempts, chunks, caches, aborts and uses ids again, in the small form of the audit."""

from pathlib import Path

import pytest

from tests.vllm import programs

pytestmark = [pytest.mark.vllm, pytest.mark.models]


def test_the_draft_holds_what_requests_say(folder: Path, tmp_path: Path) -> None:
    """The program ends with an error where a text is not its request's, or where something never happened."""
    options = ("--target", folder, "--draft", folder, "--requests", "26", "--seed", "1")
    [found] = programs.run("audit", tmp_path / "record", *options, timeout=600)
    assert found["compared"] > 100
    assert found["equal"] == found["texts"]
    assert found["open at the end"] == 0
