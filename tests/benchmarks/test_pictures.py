"""Pictures of the pages show what was recorded."""

import json
import re

import pytest

from benchmarks.pictures import RESULTS, ROOT, Interval, draw, pictures


def test_pictures_are_those_of_the_records() -> None:
    kept = ROOT / "docs/pictures"
    drawn = pictures()
    assert {name: (kept / name).read_text() for name in drawn} == drawn, "python -m benchmarks.pictures"


def test_every_picture_is_shown() -> None:
    pages = "".join(path.read_text() for path in ROOT.glob("docs/*.md"))
    assert [name for name in pictures() if f"(pictures/{name})" not in pages] == []


def test_intervals_of_the_page_are_recorded() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    recorded = RESULTS.read_text() + "".join(pictures().values())
    intervals = re.findall(r"\d[\d.]*–\d[\d.]*\d", page)
    assert len(intervals) > 8
    assert [each for each in intervals if each not in recorded] == []


def test_the_dashboards_were_asked_what_they_ask_today() -> None:
    """A panel that was changed since its figures were recorded is drawn from old figures."""
    lines = [json.loads(line) for line in (ROOT / "docs/records/dashboards.jsonl").read_text().splitlines()]
    recorded = {(each["dashboard"], each["panel"]): each["queries"] for each in lines}
    asked = {
        (file, panel["title"]): [target["expr"] for target in panel["targets"]]
        for file in ("grafana.json", "grafana-pool.json")
        for panel in json.loads((ROOT / "deploy" / file).read_text())["panels"]
    }
    assert recorded == asked, "python -m campaigns.e2e.dashboards"
    assert [line["panel"] for line in lines if not any(each["points"] for each in line["series"])] == []


def test_a_larger_value_is_drawn_further_right() -> None:
    rows = [Interval("one", 1.0, 0.9, 1.1, "1"), Interval("two", 2.0, 1.5, 2.5, "2")]
    dots = [float(each) for each in re.findall(r'cx="([\d.]+)"', draw("speeds", rows, mark=1.0))]
    [mark] = re.findall(r'<line x1="([\d.]+)"', draw("speeds", rows, mark=1.0))
    assert dots[0] == pytest.approx(float(mark))
    assert dots[1] > dots[0]
