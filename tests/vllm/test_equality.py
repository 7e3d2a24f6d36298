"""A real vLLM, a real draft: the same tokens as without it, and hits."""

from pathlib import Path
from typing import Any

import pytest

from campaigns.vllm.tables import table
from ssd.integrations.vllm.contract import TESTED
from tests.vllm import programs
from tests.vllm.overlay import overlaid
from tests.vllm.releases import cached, sources

NEWEST = TESTED[-1]
pytestmark = [pytest.mark.vllm, pytest.mark.models]


USUAL = ("--cases", "T=", "grammar", "truncated")
SMALL = ("--prompts", "2", "--tokens", "10", "--patience", "1")


@pytest.fixture(scope="module")
def padded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Run by the newest tested release where its sources are at hand, else by the installed one."""
    place = tmp_path_factory.mktemp("padded")
    found = cached(NEWEST)
    first = overlaid(place / "overlay", found, NEWEST) if found is not None else None
    kind = (
        "--target",
        folder,
        "--draft",
        folder,
        "--temperatures",
        "0.7",
        "--padded",
        "--lookahead",
        "2",
        *USUAL,
    )
    return programs.run("equality", place / "record", *SMALL, *kind, timeout=800, first=first)


def test_every_token_is_the_same_with_and_without_the_draft(folder: Path, tmp_path: Path) -> None:
    """The small form of `python -m campaigns.vllm.proof`: one of its runs."""
    which = ("--models", folder.parent, "--only", "smollm2 float32")
    options = (*which, "--", *SMALL, "--temperatures", "0", "0.7", *USUAL)
    found = programs.run("proof", tmp_path / "record", *options, timeout=800)
    assert [each["case"] for each in found] == [
        "T=0.0 seeded",
        "T=0.7 seeded",
        "T=0.7 unseeded",
        "grammar",
        "truncated, penalties, minimum",
    ]
    for each in found:
        assert each["equal"] == each["texts"], each
    # Of a single case there may be none where other programs have the cores.
    assert sum(each["hits"] for each in found) > 0
    assert sum(each["accepted"] for each in found) > 0
    rows = table(found).splitlines()
    assert len(rows) == 2 + len(found)


def test_padded_proposals_change_no_token(padded: list[dict[str, Any]]) -> None:
    for each in padded:
        assert each["equal"] == each["texts"], each
    assert sum(each["padding"] for each in padded) > 0


def test_the_newest_release_decides_the_same_tokens_with_a_draft(padded: list[dict[str, Any]]) -> None:
    """Its Python over the compiled libraries of the installed one: it has no build for CPUs."""
    sources(NEWEST)
    assert {each["run"]["vllm"] for each in padded} == {NEWEST}
    assert all(each["equal"] == each["texts"] for each in padded)
    assert sum(each["hits"] for each in padded) > 0
    assert sum(each["accepted"] for each in padded) > 0
