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


FASTEST = "is the fastest"


@pytest.mark.parametrize(
    ("of_plain", "how", "words", "missing"),
    [
        ({"sd4": 1.5, "ssd": 2.0}, {}, ("ssd is the fastest: ", "(1.9", "× ar."), "do not use"),
        # Neither is faster than ar: the draft that works ahead is not the fastest for that alone.
        (
            {"sd4": 0.77, "ssd": 0.6},
            {},
            (f"ar {FASTEST}; slower than ar, do not use: sd4 (0.7", "ssd (0.6"),
            "ssd is",
        ),
        ({"sd4": 2.0, "ssd": 2.001}, {"noise": 0.1}, ("within noise of",), FASTEST),
        (
            {"sd4": 0.5, "ssd": 1.01},
            {"noise": 0.2},
            ("No case is faster than ar. Within noise of it: ssd (", "slower than ar, do not use: sd4 (0."),
            FASTEST,
        ),
        ({"sd4": 0.5, "ssd": 2.0}, {}, (f"ssd {FASTEST}", "slower than ar, do not use: sd4 (0."), "sd4 is"),
        (
            {"sd4": 1.5, "ssd": 2.0},
            {"load": 0.3},
            ("This machine was busy: other programs took 30% of the cores' time",),
            FASTEST,
        ),
        (
            {"sd4": 1.5, "ssd": 2.0},
            {"load": None},
            (f"ssd {FASTEST}", "Nobody can tell whether this machine was busy"),
            "This machine was busy",
        ),
    ],
)
def test_a_verdict_is_what_the_records_can_tell(
    tmp_path: Path,
    of_plain: dict[str, float],
    how: dict[str, float | None],
    words: tuple[str, ...],
    missing: str,
) -> None:
    said = verdict(tmp_path, of_plain, **how)  # type: ignore[arg-type]
    assert [each for each in words if each not in said] == []
    assert missing not in said


@pytest.mark.parametrize(("num_prompts", "is_enough"), [(3, False), (6, False), (7, True)])
def test_three_prompts_are_too_few(tmp_path: Path, num_prompts: int, is_enough: bool) -> None:
    """Three cases have three pairs: intervals that hold for all need seven prompts."""
    said = verdict(tmp_path, {"sd4": 1.5, "ssd": 2.0}, num_prompts=num_prompts)
    assert ("is the fastest" in said) is is_enough
    assert (f"too few prompts to tell: {num_prompts} prompts" in said) is not is_enough
    assert ("at least 7" in said) is not is_enough


def test_each_batch_size_has_its_verdict(tmp_path: Path) -> None:
    figures = RunFigures(write_run(tmp_path, cases=["ar", "ssd", "ar+b4", "ssd+b4"], datasets=["a"]))
    alone, together = verdicts(figures)
    assert alone == "Temperature 0, batch size 1: ssd+t0+b1 is the fastest: 2.25 (2.25–2.25) × ar."
    assert "batch size 4: too few prompts to tell: 2 batches of 4" in together


def test_without_plain_decoding_nothing_is_concluded(tmp_path: Path) -> None:
    made = write_run(tmp_path, cases=["sd4", "ssd"], datasets=["a"])
    assert "the case ar was not measured" in verdicts(RunFigures(made))[0]
