"""Workflows, issue forms and the citation fit their schemas; workflows have no more rights than they need.

The schemas come with check-jsonschema.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("check_jsonschema")
ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "vendor.github-issue-forms": sorted(GITHUB.glob("ISSUE_TEMPLATE/[0-9]*.yml")),
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE/config.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_fit_their_schema(schema: str) -> None:
    files = [str(path) for path in SCHEMAS[schema]]
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr


def test_workflows_are_bounded_pinned_and_without_secrets() -> None:
    jobs: dict[str, dict[str, Any]] = {}
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}
        assert "secrets." not in path.read_text()
        jobs |= {name: job for name, job in workflow["jobs"].items() if "steps" in job}
    assert all("timeout-minutes" in job for job in jobs.values())
    extra = {name: job["permissions"] for name, job in jobs.items() if "permissions" in job}
    assert extra == {"publish": {"id-token": "write"}, "announce": {"contents": "write"}}
    used = {step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step}
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each)] == []
    assert jobs["publish"]["needs"] == ["ci", "build"]


def test_modules_that_workflows_run_exist() -> None:
    text = "".join(path.read_text() for path in WORKFLOWS)
    for module in set(re.findall(r"python -m ((?:benchmarks|tests)[\w.]*)", text)):
        place = ROOT.joinpath(*module.split("."))
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), module
