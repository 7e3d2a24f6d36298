"""Pages that are made from the code, or list names of it, are up to date; links of other pages resolve.

Links between the pages of docs/ are checked by `mkdocs build --strict`.
"""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from ssd import SamplingParams
from ssd.integrations.vllm.meter import COUNTERS, GAUGES, NAMES
from ssd.server.schemas import ChatCompletionRequest, CompletionRequest
from tests import alerts_page
from tests.settings_page import DOCS, PAGES, made_anew

ROOT = Path(__file__).parent.parent
OUTSIDE = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md"),
    *("benchmarks/RESULTS.md", "examples/llamacpp/README.md"),
)
"""Pages that people also read in the repository."""


@pytest.mark.parametrize("page", PAGES)
def test_tables_of_settings_are_those_of_the_configs(page: str) -> None:
    assert made_anew(page) == (DOCS / page).read_text(), "python -m tests.settings_page"


def test_the_table_of_alerts_is_that_of_the_rules() -> None:
    assert alerts_page.table() in (DOCS / "metrics.md").read_text(), "python -m tests.alerts_page"


def test_reference_pages_name_every_parameter_field_and_metric() -> None:
    metrics = (ROOT / "src/ssd/server/metrics.py").read_text()
    of_server = re.findall(r'"ssd_([a-z0-9_]+)"', metrics)
    of_server += re.findall(r'^ +"([a-z_]+)": \("', metrics, re.MULTILINE)
    assert len(of_server) > 30
    expected = {
        "sampling.md": [f"`{each.name}`" for each in dataclasses.fields(SamplingParams)],
        "server.md": [
            f"`{name}`" for kind in (CompletionRequest, ChatCompletionRequest) for name in kind.model_fields
        ],
        "vllm-reference.md": [f"`ssd_{name}" for name in {**COUNTERS, **GAUGES, **NAMES}],
        "metrics.md": [f"`ssd_{name}" for name in of_server],
    }
    for page, names in expected.items():
        text = (DOCS / page).read_text()
        assert [name for name in names if name not in text] == [], page


def _defined_in(path: Path) -> set[str]:
    """Functions, classes and methods ("Class.method") of a file."""
    names = set[str]()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return names


def test_the_path_of_a_step_names_functions_that_exist() -> None:
    page = (DOCS / "architecture.md").read_text()
    section = page[page.index("## The path of a step") : page.index("## Packages")]
    steps = re.findall(r"^ *([a-z_/]+\.py) +([\w.]+)", section, re.MULTILINE)
    assert len(steps) > 15
    missing = [step for step in steps if step[1] not in _defined_in(ROOT / "src/ssd" / step[0])]
    assert missing == []


@pytest.mark.parametrize("page", OUTSIDE)
def test_links_outside_the_site_resolve(page: str) -> None:
    broken = []
    for link, _, anchor in re.findall(r"\]\((?!http)([^)#]*)(#([^)]*))?\)", (ROOT / page).read_text()):
        target = (ROOT / page).parent / link if link else ROOT / page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append((link, anchor))
    assert broken == []


def _anchors(page: Path) -> set[str]:
    """Headings of a page as GitHub names them."""
    without_code = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
