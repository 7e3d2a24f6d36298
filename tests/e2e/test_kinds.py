"""Two drafts of unequal fit: requests find the right one soon, and the tokens are the target's."""

import time
from pathlib import Path
from typing import Any

import pytest

from ssd import LLM
from ssd.draft import strand
from tests.e2e.drafts import Drafts
from tests.e2e.kinds import FITTING, OTHER, PROMPTS, measure
from tests.e2e.other_drafts import random_draft
from tests.tiny import write_checkpoint

FRAMES = 3
"""What a draft says in them reaches beyond the next token."""


class Unhurried:
    """A target that takes as long as its draft needs, however busy the machine is."""

    def __init__(self, runner: Any, line: Any) -> None:
        self._runner, self._line = runner, line

    def launch(self, *what: Any) -> Any:
        enough, deadline = self._line.stats.num_frames + FRAMES, time.monotonic() + 1.0
        while self._line.stats.num_frames < enough and time.monotonic() < deadline:
            self._line.read(0.01)
        return self._runner.launch(*what)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def slow_down(llm: LLM) -> None:
    decoder: Any = llm._engine.core.decoder
    decoder._runner = Unhurried(decoder._runner, decoder.proposer.policy.client.line)


def test_the_right_draft_is_found_within_twenty_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Which draft has a request is a matter of fit alone here, not of how busy the machine is.
    monkeypatch.setattr(strand, "_SILENCE_SECONDS", 60.0)
    monkeypatch.setattr(strand, "_PROMPT", 2.0)
    monkeypatch.setattr(strand, "_LATE", 2.0)
    target = write_checkpoint("medium", tmp_path / "target")
    drafts = Drafts({OTHER: random_draft(target, tmp_path / "other"), FITTING: target}, tmp_path)
    engine: dict[str, Any] = {"device": "cpu", "deterministic": True, "dtype": "float32"}
    try:
        found = measure(str(target), drafts, PROMPTS[:6], 60, slow_down, **engine)
    finally:
        drafts.close()
    assert found.wrong == 0
    assert found.found == 1.0
    assert found.named_elsewhere == 0
    assert found.rounds_elsewhere < 12
