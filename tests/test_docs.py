"""Documents that must not fall behind the code."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from ssd import SamplingParams
from ssd.config import DraftConfig, EngineConfig
from ssd.integrations.vllm.meter import COUNTERS, GAUGES, NAMES
from ssd.integrations.vllm.settings import Settings as VllmSettings
from ssd.server.config import ServerConfig
from ssd.server.response_parts import ResponsesRequest
from ssd.server.schemas import ChatCompletionRequest, CompletionRequest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("owner", "config"),
    [("Engine", EngineConfig), ("Draft", DraftConfig), ("Server", ServerConfig)],
)
def test_settings_and_their_defaults_are_those_of_the_page(owner: str, config: type) -> None:
    """A table for each owner, with each of its settings once."""
    _, section = (ROOT / "docs/settings.md").read_text().split(f"\n## {owner}\n")
    table = section.partition("\n## ")[0]
    told = {
        name: default
        for names, defaults in re.findall(r"^\| (`.*?`) +\| (.*?) *\|", table, re.MULTILINE)
        for name, default in zip(re.findall("`(.*?)`", names), defaults.split(", "), strict=True)
    }
    actual = {field.name: _as_told(field.default) for field in dataclasses.fields(config)}
    assert {name: default.strip("`") for name, default in told.items()} == actual


def test_every_parameter_of_sampling_is_documented() -> None:
    sampling = (ROOT / "docs/sampling.md").read_text()
    assert [f.name for f in dataclasses.fields(SamplingParams) if f"`{f.name}`" not in sampling] == []


def test_every_setting_and_metric_inside_vllm_is_documented() -> None:
    page = (ROOT / "docs/vllm.md").read_text()
    assert [f.name for f in dataclasses.fields(VllmSettings) if f"`{f.name}`" not in page] == []
    assert [name for name in {**COUNTERS, **GAUGES, **NAMES} if f"`ssd_{name}" not in page] == []


def test_every_field_of_a_request_is_documented() -> None:
    server = (ROOT / "docs/server.md").read_text()
    kinds = (CompletionRequest, ChatCompletionRequest, ResponsesRequest)
    fields = {name for kind in kinds for name in kind.model_fields}
    assert [name for name in sorted(fields) if f"`{name}`" not in server] == []


def _as_told(value: object) -> str:
    if value is dataclasses.MISSING:
        return ""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if isinstance(value, int) and value >= size:
            return f"{value // size} {unit}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_dashboard_and_guide_name_metrics_that_exist() -> None:
    source = (ROOT / "src/ssd/server/metrics.py").read_text() + (
        ROOT / "src/ssd/server/engine_metrics.py"
    ).read_text()
    written = re.findall(r'"((?:ssd_)?[a-z0-9]+_[a-z0-9_]+)"', source) + re.findall(r'"([a-z]+)": \(', source)
    known = {*(name.removeprefix("ssd_") for name in written), *COUNTERS, *GAUGES}
    for page in ("deploy/grafana.json", "docs/metrics.md"):
        text = (ROOT / page).read_text()
        if page.endswith("json"):
            json.loads(text)
        named = set(re.findall(r"\bssd_([a-z0-9_]+)", text))
        assert len(named) > 15
        unknown = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in named} - known
        assert unknown == set(), page


def test_the_glossary_names_files_that_exist() -> None:
    page = (ROOT / "docs/glossary.md").read_text()
    named = re.findall(r"`([a-z_/]+\.py)`", page)
    assert len(named) > 30
    assert [name for name in named if not (ROOT / "src/ssd" / name).is_file()] == []


def test_the_glossary_explains_each_word_once() -> None:
    words = re.findall(r"\*\*(.+?)\*\*", (ROOT / "docs/glossary.md").read_text())
    assert len(words) > 30
    assert sorted(words) == sorted(set(words))
