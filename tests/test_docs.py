"""Documents that must not fall behind the code."""

import dataclasses
import json
import re
from pathlib import Path

from ssd import SamplingParams
from ssd.config import EngineConfig
from ssd.integrations.vllm.meter import COUNTERS, GAUGES
from ssd.integrations.vllm.settings import Settings as VllmSettings
from ssd.server.config import ServerConfig
from ssd.server.response_parts import ResponsesRequest
from ssd.server.schemas import ChatCompletionRequest, CompletionRequest

ROOT = Path(__file__).parent.parent


def test_every_setting_and_parameter_is_documented() -> None:
    settings = (ROOT / "docs/settings.md").read_text()
    assert [f.name for f in dataclasses.fields(EngineConfig) if f"`{f.name}`" not in settings] == []
    server = (ROOT / "docs/server.md").read_text()
    assert [f.name for f in dataclasses.fields(ServerConfig) if f"`{f.name}`" not in server] == []
    sampling = (ROOT / "docs/sampling.md").read_text()
    assert [f.name for f in dataclasses.fields(SamplingParams) if f"`{f.name}`" not in sampling] == []


def test_every_setting_and_metric_inside_vllm_is_documented() -> None:
    page = (ROOT / "docs/vllm.md").read_text()
    assert [f.name for f in dataclasses.fields(VllmSettings) if f"`{f.name}`" not in page] == []
    assert [name for name in {**COUNTERS, **GAUGES} if f"`ssd_{name}" not in page] == []


def test_every_field_of_a_request_is_documented() -> None:
    server = (ROOT / "docs/server.md").read_text()
    kinds = (CompletionRequest, ChatCompletionRequest, ResponsesRequest)
    fields = {name for kind in kinds for name in kind.model_fields}
    assert [name for name in sorted(fields) if f"`{name}`" not in server] == []


def test_defaults_of_the_server_are_those_of_the_page() -> None:
    _, table = (ROOT / "docs/server.md").read_text().split("## Settings\n")
    rows = re.findall(r"^\| (`.*?`) +\| (.*?) +\|", table, re.MULTILINE)
    told = {
        name: default
        for names, defaults in rows
        for name, default in zip(re.findall("`(.*?)`", names), defaults.split(", "), strict=True)
    }
    actual = {name: _as_told(value) for name, value in dataclasses.asdict(ServerConfig()).items()}
    assert told == {**actual, "max_body_bytes": f"{ServerConfig().max_body_bytes >> 20} MiB"}


def _as_told(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_dashboard_and_guide_name_metrics_that_exist() -> None:
    source = (ROOT / "src/ssd/server/metrics.py").read_text() + (
        ROOT / "src/ssd/server/engine_metrics.py"
    ).read_text()
    written = re.findall(r'"((?:ssd_)?[a-z0-9]+_[a-z0-9_]+)"', source) + re.findall(r'"([a-z]+)": \(', source)
    known = {name.removeprefix("ssd_") for name in written}
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
