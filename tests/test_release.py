"""Scripts of `.ci/release`: notes from the changelog, README's links on PyPI, what the SBOM has to name."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from ssd.version import __version__

ROOT = Path(__file__).parent.parent
NOTES = runpy.run_path(str(ROOT / ".ci/release_notes.py"))
LINKS = runpy.run_path(str(ROOT / ".ci/pypi_links.py"))
SBOM = runpy.run_path(str(ROOT / ".ci/sbom_contents.py"))

CHANGELOG = """# Changelog

## Unreleased

## 1.1.0 (2026-02-03)

One sentence that
goes on.

### Fixed

- A thing that
  goes on.
- Another.

## 1.0.0 (2026-01-02)

First.
"""


def test_notes_are_the_section_of_a_version_with_a_line_for_each_paragraph() -> None:
    notes = NOTES["section"](CHANGELOG, "1.1.0")
    assert notes == "One sentence that goes on.\n\n### Fixed\n\n- A thing that goes on.\n- Another.\n"
    assert NOTES["section"](CHANGELOG, "1.0.0") == "First.\n"


@pytest.mark.parametrize(
    ("text", "version", "message"),
    [
        (CHANGELOG, "1.2.0", "no dated section for 1.2.0"),
        (CHANGELOG.replace("1.1.0 (2026-02-03)", "1.1.0"), "1.1.0", "no dated section"),
        (CHANGELOG.replace("## Unreleased\n", "## Unreleased\n\n- New.\n"), "1.1.0", "under Unreleased"),
    ],
)
def test_a_release_without_notes_is_refused(text: str, version: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NOTES["section"](text, version)


def test_the_notes_of_this_version_begin_with_what_it_is_and_what_breaks() -> None:
    text = re.sub(
        r"(?<=## Unreleased\n).*?(?=^## )", "", (ROOT / "CHANGELOG.md").read_text(), flags=re.M | re.S
    )
    notes = NOTES["section"](text, __version__)
    assert not notes.startswith("#")
    assert re.findall(r"^### (.*)$", notes, re.MULTILINE)[0] == "What breaks"


def test_links_of_the_readme_lead_to_the_repository_and_pictures_to_their_files() -> None:
    readme = "[a](docs/a.md#b) ![p](docs/p.svg) [web](https://x.org) [here](#c)"
    assert LINKS["absolute"](readme, "we/ssd", "v1") == (
        "[a](https://github.com/we/ssd/blob/v1/docs/a.md#b) "
        "![p](https://raw.githubusercontent.com/we/ssd/v1/docs/p.svg) [web](https://x.org) [here](#c)"
    )
    ours = LINKS["absolute"]((ROOT / "README.md").read_text(), "we/ssd", "v1")
    assert len(re.findall(r"\]\(https://github.com/we/ssd/blob/v1/", ours)) > 10
    assert re.findall(r"\]\((?!https://)[^)]*\)", ours) == []


def bom() -> dict[str, Any]:
    components = [{"name": name.replace("-", "_"), "version": "1"} for name in SBOM["needed"]()]
    main = {"name": "ssd-llm", "version": __version__}
    return {"bomFormat": "CycloneDX", "metadata": {"component": main}, "components": components}


def test_an_sbom_that_lacks_a_dependency_is_refused() -> None:
    assert {"torch", "msgspec", "fastapi"} <= SBOM["needed"]()
    assert SBOM["faults"](json.dumps(bom()), __version__) == []
    without = bom()
    without["components"] = [each for each in without["components"] if each["name"] != "msgspec"]
    assert SBOM["faults"](json.dumps(without), __version__) == ["msgspec is missing"]
    assert SBOM["faults"](json.dumps(bom()), "9.9.9") == ["its main component is not 9.9.9"]
