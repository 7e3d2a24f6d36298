"""Files for people and hosts around the code: workflows, issue forms, the citation, against their schemas.

The schemas come with check-jsonschema. What a workflow's commands do is not known here: actionlint looks at
their shell in the workflow itself.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssd.version import __version__

pytest.importorskip("check_jsonschema")
ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
FORMS = sorted(GITHUB.glob("ISSUE_TEMPLATE/[0-9]*.yml"))


def assert_fits(schema: str, *files: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def all_jobs() -> dict[str, dict[str, Any]]:
    return {name: job for path in WORKFLOWS for name, job in read(path)["jobs"].items()}


def jobs() -> dict[str, dict[str, Any]]:
    """With steps of their own; others call a workflow."""
    return {name: job for name, job in all_jobs().items() if "steps" in job}


def commands() -> str:
    return "\n".join(step.get("run", "") for job in jobs().values() for step in job["steps"])


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE/config.yml"]),
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_files_fit_their_schema(schema: str, files: list[Path]) -> None:
    assert files
    assert_fits(schema, *files)


def test_tests_run_on_every_python_that_is_promised_and_on_macos() -> None:
    matrix = jobs()["tests"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert matrix["python"] == promised
    assert [each["system"] for each in matrix["include"]] == ["macos-latest"]


def test_what_takes_long_runs_by_itself_every_week() -> None:
    path = GITHUB / "workflows" / "weekly.yml"
    weekly = read(path)
    assert re.search(r"^on:\n  schedule:\n    - cron:", path.read_text(), re.MULTILINE)
    said = "\n".join(step.get("run", "") for job in weekly["jobs"].values() for step in job["steps"])
    assert "python -m tests.pool.simulate" in said
    assert 'pytest -m "slow and not vllm"' in said
    assert 'pytest -m "vllm and slow" tests/vllm' in said
    for campaign in re.findall(r"python -m ([\w.]+)", said):
        place = ROOT.joinpath(*campaign.split("."))
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), campaign


def test_every_job_ends_and_has_no_more_rights_than_it_needs() -> None:
    for path in WORKFLOWS:
        assert read(path)["permissions"] == {"contents": "read"}
    assert {name: job["permissions"] for name, job in jobs().items() if "permissions" in job} == {
        "publish": {"id-token": "write"},
        "announce": {"contents": "write"},
    }
    assert all("timeout-minutes" in job for job in jobs().values())
    assert not any("secrets." in path.read_text() for path in WORKFLOWS), "trusted publishing needs no secret"


def test_actions_are_named_by_their_commit() -> None:
    """A tag or a branch can be moved to other code."""
    used = {step["uses"] for job in jobs().values() for step in job["steps"] if "uses" in step}
    loose = {each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each)}
    assert loose == set()


def test_publishing_runs_nothing_but_what_was_built_and_checked() -> None:
    publish = jobs()["publish"]
    assert publish["needs"] == ["ci", "build"]
    assert all_jobs()["ci"]["uses"] == "./.github/workflows/ci.yml"
    assert publish["environment"] == "pypi"
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
    built = [step["run"].split()[0] for step in jobs()["build"]["steps"] if "run" in step]
    assert built[-1] == ".ci/release"
    script = (ROOT / ".ci/release").read_text()
    checks = ("wheel_contents.py", "twine", "release_notes.py", "sbom_contents.py")
    assert [each for each in checks if each not in script] == []
    assert jobs()["announce"]["needs"] == "publish"


def test_the_citation_is_of_this_version_and_its_day() -> None:
    cited = read(ROOT / "CITATION.cff")
    assert f"## {cited['version']} ({cited['date-released']})" in (ROOT / "CHANGELOG.md").read_text()
    assert cited["version"] == __version__
    [paper] = cited["references"]
    assert [each["family-names"] for each in paper["authors"]] == ["Kumar", "Dao", "May"]
