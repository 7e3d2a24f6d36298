"""Documents that must not fall behind the code."""

import dataclasses
import re
from pathlib import Path

import pytest

from ssd import SamplingParams
from ssd.config import EngineConfig

ROOT = Path(__file__).parent.parent


def test_every_setting_and_parameter_is_documented() -> None:
    settings = (ROOT / "docs/settings.md").read_text()
    assert [f.name for f in dataclasses.fields(EngineConfig) if f"`{f.name}`" not in settings] == []
    sampling = (ROOT / "docs/sampling.md").read_text()
    assert [f.name for f in dataclasses.fields(SamplingParams) if f"`{f.name}`" not in sampling] == []


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))]
)
def test_links_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    links = re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / page).read_text())
    assert [link for link in links if not (folder / link).exists()] == []
