"""The sentence that concludes a run: it names the fastest case only where the records can tell."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ssd.bench.records import CaseRecord
from ssd.bench.report import markdown
from ssd.bench.summary import RunFigures
from ssd.bench.verdict import verdicts
from tests.bench.made_up import SPEED, write_run

Change = Callable[[CaseRecord], CaseRecord]
CASES = ("ar", "sd4", "ssd")


def speeds(of_plain: Mapping[str, float], *, noise: float = 0.02, load: float | None = 0.0) -> Change:
    """Each case at this multiple of `ar`, give or take `noise` in each text."""

    def change(each: CaseRecord) -> CaseRecord:
        name = each.case.removesuffix("+t0+b1")
        luck = 1 + noise * random.Random(f"{each.case} {each.dataset} {each.prompt}").uniform(-1, 1)
        factor = of_plain[name] * SPEED["ar"] / SPEED[name] * luck
        return replace(each, seconds_per_token=each.seconds_per_token / factor, other_load=load)

    return change


def verdict(
    folder: Path, of_plain: Mapping[str, float], *, num_prompts: int = 12, **how: float | None
) -> str:
    change = speeds({"ar": 1.0, **of_plain}, **how)  # type: ignore[arg-type]
    made = write_run(
        folder, cases=("ar", *of_plain), datasets=("humaneval",), num_prompts=num_prompts, change=change
    )
    figures = RunFigures(made)
    found = verdicts(figures)
    page = markdown(figures)
    assert all(each in page for each in found)
    table = [str(row.over_ar) for row in figures.rows if row.over_ar is not None]
    named = [words.split(" ×")[0].rpartition(", ")[2] for words in found[0].split("; ") if ") ×" in words]
    assert all(any(name.endswith(cell) for cell in table) for name in named), (found, table)
    return " ".join(found)


def test_the_fastest_is_named_with_its_ratio_and_interval(tmp_path: Path) -> None:
    said = verdict(tmp_path, {"sd4": 1.5, "ssd": 2.0})
    assert said.startswith("ssd is the fastest: ")
    assert "(1.9" in said
    assert said.endswith("× ar.")


def test_a_case_is_not_the_fastest_because_its_draft_works_ahead(tmp_path: Path) -> None:
    """0.3 called ssd the fastest at 0.73 where sd4 had 0.77, and neither is faster than ar."""
    said = verdict(tmp_path, {"sd4": 0.77, "ssd": 0.6})
    assert said.startswith("ar is the fastest; slower: do not use sd4, 0.7")
    assert "ssd, 0.6" in said
    assert "ssd is the fastest" not in said


def test_two_cases_that_cannot_be_told_apart(tmp_path: Path) -> None:
    said = verdict(tmp_path, {"sd4": 2.0, "ssd": 2.001}, noise=0.1)
    assert "within noise of" in said
    assert "is the fastest" not in said


def test_an_interval_with_one_in_it_is_noise(tmp_path: Path) -> None:
    said = verdict(tmp_path, {"sd4": 0.5, "ssd": 1.01}, noise=0.2)
    assert said.startswith("Within noise: no case is faster than ar (ssd, ")
    assert "slower: do not use sd4, 0." in said


def test_a_slow_case_beside_a_fast_one_is_not_to_be_used(tmp_path: Path) -> None:
    said = verdict(tmp_path, {"sd4": 0.5, "ssd": 2.0})
    assert "ssd is the fastest" in said
    assert "slower: do not use sd4, 0." in said


@pytest.mark.parametrize(("num_prompts", "is_enough"), [(3, False), (6, False), (7, True)])
def test_three_prompts_are_too_few(tmp_path: Path, num_prompts: int, is_enough: bool) -> None:
    """Three cases have three pairs: intervals that hold for all need seven prompts."""
    said = verdict(tmp_path, {"sd4": 1.5, "ssd": 2.0}, num_prompts=num_prompts)
    assert ("is the fastest" in said) is is_enough
    assert (f"too few prompts to tell: {num_prompts} prompts" in said) is not is_enough
    assert ("at least 7" in said) is not is_enough


def test_a_busy_machine_has_no_verdict(tmp_path: Path) -> None:
    said = verdict(tmp_path, {"sd4": 1.5, "ssd": 2.0}, load=0.3)
    assert "This machine was busy: other programs took 30% of the cores' time" in said
    assert "is the fastest" not in said


def test_an_unknown_load_is_said(tmp_path: Path) -> None:
    said = verdict(tmp_path, {"sd4": 1.5, "ssd": 2.0}, load=None)
    assert "ssd is the fastest" in said
    assert "Whether this machine was busy cannot be told" in said


def test_each_batch_size_has_its_verdict(tmp_path: Path) -> None:
    figures = RunFigures(write_run(tmp_path, cases=["ar", "ssd", "ar+b4", "ssd+b4"], datasets=["a"]))
    alone, together = verdicts(figures)
    assert alone == "Temperature 0, batch size 1: ssd+t0+b1 is the fastest: 2.25 (2.25–2.25) × ar."
    assert "batch size 4: too few prompts to tell: 2 batches of 4" in together


def test_without_plain_decoding_nothing_is_concluded(tmp_path: Path) -> None:
    made = write_run(tmp_path, cases=["sd4", "ssd"], datasets=["a"])
    assert "the case ar was not measured" in verdicts(RunFigures(made))[0]
