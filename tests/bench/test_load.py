"""Load: levels and turns, what a recorded report of the generator says, figures and verdicts."""

import dataclasses
import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ssd.bench.load import Answered, Endpoint, Level, LevelRecord, LoadFolder, LoadSettings, turns
from ssd.bench.load_figures import LoadFigures, in_words
from ssd.bench.load_guidellm import GeneratorError, Guidellm, read_report
from ssd.bench.load_report import write_load_report
from ssd.cli.main import app

ONE, EIGHT, RATE = (
    Level(kind="users", value=1), Level(kind="users", value=8), Level(kind="rate", value=0.5),
)  # fmt: skip
SSD = Endpoint(name="ssd", url="http://here", model="m", devices=2)
AR = dataclasses.replace(SSD, name="ar", devices=1, body={"speculation": False})
SETTINGS = LoadSettings(
    endpoints=[SSD, AR], levels=[ONE, EIGHT], datasets=["code"], prompts="digest", num_prompts=4,
    max_tokens=11, requests=3, rate_requests=5, max_seconds=60, rounds=6,
)  # fmt: skip
REPORT = json.loads((Path(__file__).parent / "guidellm_report.json").read_text())


def answers(rate: float, count: int = 6, wait: float = 0.5, users: int = 1) -> list[Answered]:
    """Of users who ask one after the other, 11 tokens each."""
    each = wait + 10 / rate
    return [
        Answered(
            began=each * (place // users),
            first_token=each * (place // users) + wait,
            last_token=each * (place // users + 1),
            ended=each * (place // users + 1),
            num_tokens=11,
        )
        for place in range(count)
    ]


def record(endpoint: str, level: Level, rate: float, number: int = 0, **more: Any) -> LevelRecord:
    users = int(level.value) if level.kind == "users" else 1
    made = answers(rate, count=6 * users, users=users)
    return LevelRecord(endpoint=endpoint, level=level, round=number, answers=made, num_failed=0, **more)


def rounds(endpoint: str, level: Level, rates: Sequence[float]) -> list[LevelRecord]:
    return [record(endpoint, level, rate, number) for number, rate in enumerate(rates)]


def test_a_recorded_report_is_read() -> None:
    found = read_report(REPORT, "ssd", RATE, 1)
    assert (found.endpoint, found.level, found.round) == ("ssd", RATE, 1)
    assert len(found.answers) == 6
    assert (found.num_failed, found.num_unfinished) == (1, 0)
    assert "400 Bad Request" in (found.first_failure or "")
    first = min(found.answers, key=lambda each: each.began)
    assert first.began == 0
    assert all(each.began < each.first_token < each.last_token <= each.ended for each in found.answers)
    assert {each.num_tokens for each in found.answers} == {16}


def test_a_report_of_another_version_is_refused() -> None:
    with pytest.raises(GeneratorError, match="not as version"):
        read_report({"benchmarks": [{"requests": {}}]}, "ssd", ONE, 0)


def test_endpoints_take_turns() -> None:
    settings = dataclasses.replace(SETTINGS, rounds=2)
    order = [(endpoint.name, level.value, number) for endpoint, level, number in turns(settings)]
    assert order == [
        ("ssd", 1, 0), ("ar", 1, 0), ("ar", 8, 0), ("ssd", 8, 0),
        ("ar", 1, 1), ("ssd", 1, 1), ("ssd", 8, 1), ("ar", 8, 1),
    ]  # fmt: skip


def test_scenarios_ask_for_the_level_and_send_the_body(tmp_path: Path) -> None:
    generator = Guidellm(program="guidellm", prompts=["a", "b", "c"], api_key="key")
    spec = generator._scenario(AR, EIGHT, SETTINGS, tmp_path)["spec"]
    assert spec["profile"] == {"kind": "concurrent", "streams": 8}
    assert spec["constraints"][0] == {"kind": "max_requests", "count": 24}
    assert spec["backend"]["extras"]["body"] == {"temperature": 0, "ignore_eos": True, "speculation": False}
    assert (spec["backend"]["target"], spec["backend"]["api_key"]) == ("http://here", "key")
    assert generator._scenario(SSD, RATE, SETTINGS, tmp_path)["spec"]["profile"]["kind"] == "poisson"
    generator._write_prompts(tmp_path / "prompts", 4, 1)
    lines = (tmp_path / "prompts").read_text().splitlines()
    assert [json.loads(line)["prompt"] for line in lines] == ["b", "c", "a", "b"]


def test_figures_of_a_level() -> None:
    figures = LoadFigures(SETTINGS, [record("ssd", EIGHT, 20.0)], price=3.6)
    row = figures.row("ssd", EIGHT)
    assert row is not None
    assert row.user_rate.value == pytest.approx(20)
    # Eight at a time, 11 tokens in half a second of waiting and half a second of tokens.
    assert row.throughput == pytest.approx(88)
    assert row.per_device == pytest.approx(44)
    assert row.wait.p99 == pytest.approx(0.5)
    assert row.per_token.p50 == pytest.approx(0.05)
    # Two devices for an hour cost 7.2, and give 316,800 tokens.
    assert row.cost == pytest.approx(7.2 / 0.3168)
    assert figures.row("ar", EIGHT) is None


def test_it_is_told_where_help_ends_and_what_a_device_brings() -> None:
    records = [
        *rounds("ssd", ONE, [30.0] * 6), *rounds("ar", ONE, [10.0] * 6),
        *rounds("ssd", EIGHT, [8.0] * 6), *rounds("ar", EIGHT, [10.0] * 6),
    ]  # fmt: skip
    figures = LoadFigures(SETTINGS, records)
    ratios = figures.ratios("ssd", "ar")
    assert [each.says for each in ratios] == ["helps", "slows down"]
    assert [each.user_rate.value for each in ratios] == pytest.approx([3.0, 0.8])
    # Three times the rate, but waiting takes as long: 0.833 against 1.5 seconds; on twice the devices.
    assert ratios[0].throughput.value == pytest.approx(1.5 / (0.5 + 1 / 3))
    assert ratios[0].per_device == pytest.approx(ratios[0].throughput.value / 2)
    words = in_words("ssd", "ar", ratios)
    assert words[0].startswith("at 1 user, ssd helps beside ar: 1.80")
    assert words[1].startswith("at 8 users, ssd slows down beside ar: 0.86")
    assert "more than ar at no level" in words[2]


def test_levels_that_say_the_same_are_told_together() -> None:
    settings = dataclasses.replace(SETTINGS, endpoints=[dataclasses.replace(SSD, devices=1), AR])
    records = [
        each
        for level in (ONE, EIGHT)
        for name, rate in (("ssd", 20.0), ("ar", 10.0))
        for each in rounds(name, level, [rate] * 6)
    ]
    words = in_words("ssd", "ar", LoadFigures(settings, records).ratios("ssd", "ar"))
    assert words[0].startswith("from 1 user to 8 users, ssd helps beside ar: 1.50")
    assert "at 1 user, 8 users" in words[1]


def test_users_who_wait_for_a_seat_count() -> None:
    """A server with few seats answers those who have one faster; the others wait outside of that figure."""
    crowded = [
        LevelRecord(
            endpoint="ssd", level=EIGHT, round=number, num_failed=0, answers=answers(20.0, count=48, users=2)
        )
        for number in range(6)
    ]
    (ratio,) = LoadFigures(SETTINGS, [*crowded, *rounds("ar", EIGHT, [10.0] * 6)]).ratios("ssd", "ar")
    assert ratio.user_rate.value == pytest.approx(2)
    assert ratio.says == "slows down"


@pytest.mark.parametrize("lost", ["num_failed", "num_unfinished"])
def test_where_requests_are_lost_nothing_is_judged(lost: str) -> None:
    ours = rounds("ssd", ONE, [30.0] * 6)
    ours[3] = dataclasses.replace(ours[3], **{lost: 1})  # type: ignore[arg-type]
    (ratio,) = LoadFigures(SETTINGS, [*ours, *rounds("ar", ONE, [10.0] * 6)]).ratios("ssd", "ar")
    assert ratio.says == "cannot be judged, since requests were lost,"


def test_noise_is_no_difference() -> None:
    ours, theirs = [9.0, 10.0, 11.0, 12.0, 9.0, 10.0], [9.5, 10.5, 11.5, 10.0, 8.0, 10.5]
    figures = LoadFigures(SETTINGS, [*rounds("ssd", ONE, ours), *rounds("ar", ONE, theirs)])
    assert [each.says for each in figures.ratios("ssd", "ar")] == ["makes no difference"]


def test_a_round_is_one_observation_however_many_requests_it_has() -> None:
    """A drift of the machine between two endpoints is in all requests of a round: hundreds prove nothing."""
    figures = LoadFigures(SETTINGS, [record("ssd", EIGHT, 20.0), record("ar", EIGHT, 10.0)])
    (ratio,) = figures.ratios("ssd", "ar")
    assert ratio.user_rate.value == pytest.approx(2)
    assert ratio.user_rate.low is None
    assert ratio.says == "cannot be judged by so few rounds"


def test_requests_that_were_cut_off_are_told(tmp_path: Path) -> None:
    write_load_report(LoadFigures(SETTINGS, [record("ssd", ONE, 20.0, num_unfinished=3)]), tmp_path)
    assert "| 0 of 9 | 3 |" in (tmp_path / "report.md").read_text()


def test_reports_are_written(tmp_path: Path) -> None:
    records = [
        *(record(name, level, 20.0) for level in (ONE, EIGHT) for name in ("ssd", "ar")),
        record("ssd", RATE, 5.0),
    ]
    settings = dataclasses.replace(SETTINGS, levels=[ONE, EIGHT, RATE])
    write_load_report(LoadFigures(settings, records), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "| 8 users | ssd | 88.0 |" in text
    assert "- ar: m at http://here, 1 device, speculation: False" in text
    assert "| ssd over ar |" in text
    drawing = ET.parse(tmp_path / "load.svg").getroot()
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    dots = drawing.findall(".//{http://www.w3.org/2000/svg}title")
    assert len(dots) == 10, "each endpoint at each level, in all and for a user"
    assert "prefers-color-scheme: dark" in (tmp_path / "load.svg").read_text()


def test_a_run_goes_on_and_another_is_refused(tmp_path: Path) -> None:
    folder = LoadFolder(tmp_path / "run")
    folder.begin(SETTINGS)
    folder.add(record("ssd", ONE, 20.0))
    with (tmp_path / "run" / "levels.jsonl").open("a") as file:
        file.write('{"endpoint": "a')
    folder.begin(SETTINGS)
    assert [each.endpoint for each in folder.records()] == ["ssd"]
    assert folder.settings() == SETTINGS
    with pytest.raises(ValueError, match="unlike in max_tokens, requests"):
        folder.begin(dataclasses.replace(SETTINGS, max_tokens=5, requests=9))


def test_plots_that_cannot_be_drawn_are_said_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(app, ["bench", "serve", "--url", "http://here", "--run", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert "plots need the package matplotlib" in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()
