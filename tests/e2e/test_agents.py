"""Agent frameworks, where they are installed: `python -m campaigns.e2e.agents` says what they do."""

from pathlib import Path

import pytest

from campaigns.e2e.agents import TRIALS, check, try_all

pytestmark = [pytest.mark.models, pytest.mark.slow]


@pytest.mark.parametrize("name", TRIALS)
def test_a_framework_calls_a_tool_and_streams(qwen_draft: Path, name: str) -> None:
    """What it sends is taken; strict tools and /v1/responses were refused."""
    pytest.importorskip(name)
    check(try_all(qwen_draft, [name])[name])
