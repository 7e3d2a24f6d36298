"""Figures of the pages that people read first: each is in the measurements or in a record of docs/records."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.figures import TOGETHER, PeersFigures
from benchmarks.peers.records import PeerRecord
from ssd.bench.folder import read_lines

ROOT = Path(__file__).parent.parent
MEASURED = (ROOT / "benchmarks/RESULTS.md").read_text()


def page(name: str) -> str:
    """Without code and without where links lead to."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", text)


def record(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "docs/records" / name).read_text().splitlines()]


def table(name: str, head: str) -> list[list[str]]:
    text = (ROOT / name).read_text()
    lines = text[text.index(head) :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def without_source(text: str, source: str) -> set[str]:
    """Decimals, intervals and shares of a text that are not in the source, where 85 % may be 0.85."""
    versions = r"(?:vLLM|GenAI|transformers|version|Python|Qwen|Llama|GPT)\S* (?:[\w.-]+ )?v?\d[\d.]*"
    text = re.sub(versions, "", text)
    intervals = set(re.findall(r"\d[\d.]*–\d[\d.]*\d", text))
    decimals = set(re.findall(r"(?<![\d.–])\d+\.\d+(?![\d–])", text))
    shares = {int(n) for each in re.findall(r"(\d+(?: and \d+)?) %", text) for n in each.split(" and ")}
    missing = {each for each in intervals | decimals if each not in source}
    return missing | {f"{n} %" for n in shares if f"{n} %" not in source and f"{n / 100:.2f}" not in source}


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", "docs/performance.md"])
def test_figures_were_measured(name: str) -> None:
    text = page(name)
    assert len(re.findall(r"\d+\.\d+", text)) > 20
    assert without_source(text, MEASURED) == set()


def test_figures_that_nobody_measured_are_noticed() -> None:
    found = without_source("9.87 (1.23–4.56), 77 and 31 %; vLLM 0.32.0; 12.34", "12.34 and 0.77")
    assert found == {"9.87", "1.23–4.56", "31 %"}


def test_readme_and_the_sites_home_have_one_table() -> None:
    head = "|                                          | tokens a second"
    assert table("README.md", head) == table("docs/index.md", head)


def test_the_shares_of_tenants_are_those_of_the_record() -> None:
    alone, together, *_ = [each for each in record("sharing.jsonl") if each["simulated"]]
    rows = table("docs/fleet.md", "| tenant | weight |")
    assert {row[0] for row in rows} == set(together["shares"])
    for name, _weight, _sequences, share, hits in rows:
        assert share == f"{together['shares'][name]:.1%}".replace("%", " %")
        measured = together["hits"][name]
        assert hits.partition(" %")[0] in (f"{100 * measured:.1f}", f"{100 * measured:.0f}"), name
    assert f"alone {100 * alone['hits']['quiet']:.1f} %" in rows[0][4]


def test_the_table_of_distances_is_that_of_the_record() -> None:
    points = record("network.jsonl")
    rows = table("docs/fleet.md", "| a verification | batch |")
    assert len(rows) == 6
    for verification, batch, *speeds in rows:
        mine = [
            each
            for each in points
            if (f"{each['verify']:.0f} ms", str(each["batch"])) == (verification, batch)
        ]
        deep = {each["trip"]: each["speed"] for each in mine if each["further"]}
        normal = {each["trip"]: each["speed"] for each in mine if not each["further"]}
        assert speeds == [f"{each:.2f}" for each in (deep[0.05], deep[1], deep[5], deep[20], normal[20])]


def test_the_table_beside_llamacpp_is_that_of_the_record() -> None:
    """Rates and ratios are computed again from the texts of the run."""
    figures = PeersFigures(read_lines(ROOT / "docs/records/peers_gguf.jsonl", PeerRecord))
    measured = {
        row.case: [str(row.rate), f"{row.first_token:.1f}", "" if row.ratio is None else str(row.ratio)]
        for row in figures.rows(TOGETHER)
    }
    for name in ("docs/performance.md", "benchmarks/RESULTS.md"):
        rows = table(name, "| engine and weights | case | cores |")
        assert {case.strip("`"): cells for _, case, _, *cells in rows} == measured
