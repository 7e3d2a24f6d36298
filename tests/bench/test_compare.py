"""Two runs compared: verdicts that know noise and drift, and refusals that name what differs."""

import random
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from ssd.bench.compare import compare_runs
from ssd.bench.records import CaseRecord
from ssd.cli.main import app
from tests.bench.made_up import Change, at_speed, write_run


def noisy(seed: int, factor: float = 1.0) -> Change:
    """Each text somewhat faster or slower by chance."""
    luck = random.Random(seed)

    def change(each: CaseRecord) -> CaseRecord:
        return replace(each, seconds_per_token=each.seconds_per_token / factor * luck.uniform(0.85, 1.15))

    return change


def verdicts(tmp_path: Path, before: Change, after: Change, *, forward_seconds: float = 0.25) -> set[str]:
    write_run(tmp_path / "a", num_prompts=18, change=before)
    write_run(tmp_path / "b", num_prompts=18, change=after, forward_seconds=forward_seconds)
    return {row.verdict for row in compare_runs(tmp_path / "a", tmp_path / "b").rows}


def test_noise_is_no_difference(tmp_path: Path) -> None:
    found = verdicts(tmp_path, noisy(1), noisy(2))
    assert found == {"no difference that the noise allows"}


@pytest.mark.parametrize(("factor", "verdict"), [(1.3, "faster"), (1 / 1.3, "slower")])
def test_a_difference_is_found_in_noise(tmp_path: Path, factor: float, verdict: str) -> None:
    assert verdicts(tmp_path, noisy(1), noisy(2, factor)) == {verdict}


def test_data_sets_together_say_more_than_each_alone(tmp_path: Path) -> None:
    """Six prompts of each of two data sets, four cases: enough for four intervals, not for eight."""
    for name, change in (("a", noisy(1)), ("b", noisy(2, 1.4))):
        write_run(tmp_path / name, num_prompts=6, change=change)
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    assert {row.verdict for row in found.rows} == {"too few prompts to tell"}
    assert {row.verdict for row in found.together} == {"faster"}


def test_a_faster_day_is_not_a_faster_engine(tmp_path: Path) -> None:
    """Everything 1.3 times as fast, bare forwards too."""
    found = verdicts(tmp_path, noisy(1), noisy(2, 1.3), forward_seconds=0.25 / 1.3)
    assert found == {"no difference that the noise allows"}
    comparison = compare_runs(tmp_path / "a", tmp_path / "b")
    assert comparison.forwards is not None
    assert comparison.forwards.value == pytest.approx(1.3)
    assert {row.reason for row in comparison.rows} == {"faster, but so were the bare forwards"}


def test_rows_pair_prompt_by_prompt(tmp_path: Path) -> None:
    write_run(tmp_path / "a", cases=["ar", "ssd"], num_prompts=8)
    write_run(tmp_path / "b", cases=["ssd", "sd4"], num_prompts=8, change=at_speed(2))
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    assert [(row.dataset, row.case) for row in found.rows] == [
        ("humaneval", "ssd+t0+b1"), ("alpaca", "ssd+t0+b1"),
    ]  # fmt: skip
    assert found.rows[0].ratio.value == pytest.approx(2)
    assert [(row.dataset, row.ratio.count, row.verdict) for row in found.together] == [("all", 16, "faster")]
    done = CliRunner().invoke(app, ["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b")])
    assert done.exit_code == 0
    assert "faster" in done.output


def rewrite(folder: Path, old: str, new: str) -> None:
    file = folder / "manifest.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"max_tokens": 20', '"max_tokens": 30', "max_tokens is 20 there and 30 here"),
        ('"humaneval": "digest"', '"humaneval": "other"', "the prompts of humaneval differ"),
        ('"name": "target-1.5b"', '"name": "target-3b"', "the target is target-1.5b"),
        ('"num_prompts": 6', '"num_prompts": 5', "num_prompts is 6 there and 5 here"),
    ],
)
def test_unlike_runs_are_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    rewrite(tmp_path / "b", old, new)
    with pytest.raises(ValueError, match=said):
        compare_runs(tmp_path / "a", tmp_path / "b")


def test_other_hardware_and_source_are_noted(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    rewrite(tmp_path / "b", "Made-up Processor", "Another Processor")
    rewrite(tmp_path / "b", "0123456789ab", "ba9876543210")
    rewrite(tmp_path / "b", '"engine": {}', '"engine": {"draft_width": 8}')
    notes = compare_runs(tmp_path / "a", tmp_path / "b").notes
    assert any("processor was 'Made-up Processor', is 'Another Processor'" in note for note in notes)
    assert any("commit was 0123456789ab, is ba9876543210" in note for note in notes)
    assert any(note.startswith("engine is") for note in notes)


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no run"):
        compare_runs(tmp_path, tmp_path)
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode({"settings": 1}))
    with pytest.raises(ValueError, match="that this version reads"):
        compare_runs(tmp_path, tmp_path)
