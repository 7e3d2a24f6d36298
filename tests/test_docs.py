"""Documents that must not fall behind the code."""

import ast
import dataclasses
import json
import re
from pathlib import Path

import pytest

from ssd import SamplingParams
from ssd.integrations.vllm.meter import COUNTERS, GAUGES, NAMES
from ssd.server.responses_input import ResponsesRequest
from ssd.server.schemas import ChatCompletionRequest, CompletionRequest
from tests import alerts_page
from tests.settings_page import DOCS, PAGES, made_anew

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", PAGES)
def test_tables_of_settings_are_those_of_the_configs(page: str) -> None:
    assert made_anew(page) == (DOCS / page).read_text(), "python -m tests.settings_page"


def test_every_parameter_of_sampling_is_documented() -> None:
    sampling = (ROOT / "docs/sampling.md").read_text()
    assert [f.name for f in dataclasses.fields(SamplingParams) if f"`{f.name}`" not in sampling] == []


def test_every_metric_inside_vllm_is_documented() -> None:
    page = (ROOT / "docs/vllm-reference.md").read_text()
    assert [name for name in {**COUNTERS, **GAUGES, **NAMES} if f"`ssd_{name}" not in page] == []


def test_every_field_of_a_request_is_documented() -> None:
    server = (ROOT / "docs/server.md").read_text()
    kinds = (CompletionRequest, ChatCompletionRequest, ResponsesRequest)
    fields = {name for kind in kinds for name in kind.model_fields}
    assert [name for name in sorted(fields) if f"`{name}`" not in server] == []


def test_every_metric_of_the_server_is_documented() -> None:
    source = (ROOT / "src/ssd/server/metrics.py").read_text()
    names = re.findall(r'"ssd_([a-z0-9_]+)"', source) + re.findall(
        r'^ +"([a-z_]+)": \("', source, re.MULTILINE
    )
    names += re.findall(r'_counter\(\s*"([a-z_]+)"', source)
    assert len(names) > 40
    page = (ROOT / "docs/metrics.md").read_text()
    assert [name for name in names if not re.search(rf"`ssd_{name}(_total)?(`|\{{)", page)] == []


def test_the_table_of_alerts_is_that_of_the_rules() -> None:
    assert alerts_page.table() in (ROOT / "docs/metrics.md").read_text(), "python -m tests.alerts_page"


def test_dashboard_and_guide_name_metrics_that_exist() -> None:
    source = (ROOT / "src/ssd/server/metrics.py").read_text()
    written = re.findall(r'"((?:ssd_)?[a-z0-9]+_[a-z0-9_]+)"', source) + re.findall(r'"([a-z]+)": \(', source)
    known = {*(name.removeprefix("ssd_") for name in written), *COUNTERS, *GAUGES}
    for page in ("deploy/grafana.json", "docs/metrics.md"):
        text = (ROOT / page).read_text()
        if page.endswith("json"):
            json.loads(text)
        named = set(re.findall(r"\bssd_([a-z0-9_]+)", text))
        assert len(named) > 15
        # Recorded names are checked by tests/test_fleet.py.
        named = {name for name in named if not name.startswith(("pool_", "tenant_"))}
        unknown = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in named} - known
        assert unknown == set(), page


def test_the_glossary_names_files_that_exist() -> None:
    page = (ROOT / "docs/glossary.md").read_text()
    named = re.findall(r"`([a-z_/]+\.py)`", page)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "src/ssd" / name).is_file()] == []


def test_the_glossary_explains_each_word_once() -> None:
    words = re.findall(r"\*\*(.+?)\*\*", (ROOT / "docs/glossary.md").read_text())
    assert 20 < len(words) <= 32
    assert sorted(words) == sorted(set(words))


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
    page = (ROOT / "docs/architecture.md").read_text()
    section = page[page.index("## The path of a step") : page.index("## Packages")]
    steps = re.findall(r"^ *([a-z_/]+\.py) +([\w.]+)", section, re.MULTILINE)
    assert len(steps) > 25
    missing = [step for step in steps if step[1] not in _defined_in(ROOT / "src/ssd" / step[0])]
    assert missing == []
