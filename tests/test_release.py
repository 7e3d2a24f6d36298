"""A release: one name and version everywhere, a wheel with the package only, notes, and the SBOM."""

import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from ssd.version import DISTRIBUTION, __version__, how_to_install

ROOT = Path(__file__).parent.parent
CHANGELOG = ROOT / "CHANGELOG.md"
NOTES = runpy.run_path(str(ROOT / ".ci/release_notes.py"))
LINKS = runpy.run_path(str(ROOT / ".ci/pypi_links.py"))
SBOM = runpy.run_path(str(ROOT / ".ci/sbom_contents.py"))
ANOTHER_PROJECT = re.compile(r"(?<![\w-])ssd\[[a-z]|pip install (?:-\S+ )*['\"]?ssd(?![\w\[-])")
"""The name `ssd` where pip reads it: on PyPI that is another project."""


def test_messages_and_pages_name_our_distribution_and_its_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    assert how_to_install("server") == "pip install 'ssd-llm[server]'"
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md", *ROOT.glob("deploy/*")]
    texts = {path: path.read_text() for path in files if path.is_file()}
    assert [path.name for path, text in texts.items() if ANOTHER_PROJECT.search(text)] == []
    source = "".join(text for path, text in texts.items() if path.suffix == ".py")
    assert set(re.findall(r"how_to_install\(['\"](\w+)['\"]\)", source)) <= set(
        project["optional-dependencies"]
    )


def test_the_changelog_and_the_citation_have_this_version() -> None:
    heads = re.findall(r"^## (.*)$", CHANGELOG.read_text(), re.MULTILINE)
    released = [head for head in heads if head != "Unreleased"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(20\d\d-\d\d-\d\d\)", head) for head in released)
    cited = (ROOT / "CITATION.cff").read_text()
    day = re.findall(r"^date-released: ['\"]?([\d-]+)", cited, re.MULTILINE)[0]
    assert released[0] == f"{__version__} ({day})"
    assert f"version: {__version__}" in cited.replace('"', "").replace("'", "")


def test_notes_of_a_release_are_its_section() -> None:
    text = "# Changelog\n\n## Unreleased\n\n## 1.1.0 (2026-02-03)\n\nA sentence\nthat goes on.\n\n- One.\n"
    text += "\n## 1.0.0 (2026-01-02)\n\nFirst.\n"
    assert NOTES["section"](text, "1.1.0") == "A sentence that goes on.\n\n- One.\n"
    with pytest.raises(ValueError, match="no dated section"):
        NOTES["section"](text, "1.2.0")
    with pytest.raises(ValueError, match="under Unreleased"):
        NOTES["section"](text.replace("## Unreleased\n", "## Unreleased\n\n- New.\n"), "1.1.0")


def test_links_of_the_readme_lead_to_the_repository() -> None:
    ours = LINKS["absolute"]((ROOT / "README.md").read_text(), "we/ssd", "v1")
    assert len(re.findall(r"\]\(https://github.com/we/ssd/blob/v1/", ours)) > 5
    assert re.findall(r"\]\((?!https://)[^)]*\)", ours) == []


def test_an_sbom_that_lacks_a_dependency_is_refused() -> None:
    assert {"torch", "msgspec", "fastapi"} <= SBOM["needed"]()
    components = [{"name": name.replace("-", "_"), "version": "1"} for name in sorted(SBOM["needed"]())]
    main: dict[str, Any] = {"component": {"name": DISTRIBUTION, "version": __version__}}
    bom = {"bomFormat": "CycloneDX", "metadata": main, "components": components}
    assert SBOM["faults"](json.dumps(bom), __version__) == []
    lost = components.pop()["name"].replace("_", "-")
    assert SBOM["faults"](json.dumps(bom), __version__) == [f"{lost} is missing"]


@pytest.mark.parametrize(
    ("more", "without"),
    [(None, None), ("tests/test_docs.py", None), ("ssd/forgotten.py", None), (None, "ssd/py.typed")],
)
def test_a_wheel_holds_the_package_only(tmp_path: Path, more: str | None, without: str | None) -> None:
    files = [path for path in (ROOT / "src/ssd").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    names = [path.relative_to(ROOT / "src").as_posix() for path in files]
    about = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    names += [f"ssd_llm-{__version__}.dist-info/{name}" for name in about]
    with ZipFile(tmp_path / "a.whl", "w") as archive:
        for name in [*names, *([more] if more else [])]:
            if name != without:
                archive.writestr(name, "")
    command = [sys.executable, str(ROOT / ".ci/wheel_contents.py"), str(tmp_path / "a.whl")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == (1 if more or without else 0), run.stdout + run.stderr
    assert (more or without or "nothing else") in run.stdout + run.stderr
