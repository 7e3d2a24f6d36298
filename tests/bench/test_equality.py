"""Modes that wrote other tokens are found, and shouted at where nothing excuses them."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ssd.bench.cases import parse_case
from ssd.bench.equality import check_equality
from ssd.bench.folder import RunFolder
from ssd.bench.records import CaseRecord, Tie
from ssd.bench.summary import RunFigures
from ssd.cli.main import app
from tests.bench.made_up import record, write_run


def altered(each: CaseRecord) -> CaseRecord:
    """One token of one text is another."""
    if (each.case, each.dataset, each.prompt) != ("ssd+t0+b1", "alpaca", 3):
        return each
    return replace(each, tokens=[*each.tokens[:7], 999, *each.tokens[8:]])


@pytest.mark.parametrize(("deterministic", "code"), [(True, 1), (False, 0)])
def test_a_difference_is_shouted(tmp_path: Path, deterministic: bool, code: int) -> None:
    write_run(tmp_path, deterministic=deterministic, change=altered)
    done = CliRunner().invoke(app, ["bench", "report", str(tmp_path)])
    assert done.exit_code == code
    differing = {(row.dataset, row.case.name): row.differing for row in RunFigures(RunFolder(tmp_path)).rows}
    assert {key for key, count in differing.items() if count} == {("alpaca", "ssd"), ("all", "ssd")}
    page = (tmp_path / "report.md").read_text()
    for text in (done.output, page):
        said = " ".join(text.split())
        assert "1 of 36 texts differ" in said
        assert ("OUTPUTS DIFFER" in said) is deterministic
        assert ("texts may part where two tokens tie" in said) is not deterministic
        assert ("With --deterministic all texts are equal" in said) is not deterministic
        assert "alpaca prompt 3: ssd+t0+b1 leaves ar+t0+b1 at token 7" in said


@pytest.mark.parametrize(("gap", "words"), [(0.03, "at a tie"), (3.1, "Please report this as a fault")])
def test_the_gap_of_a_tie_is_shown(tmp_path: Path, gap: float, words: str) -> None:
    """What rounding can decide is called a tie; what it cannot is not excused."""
    folder = write_run(tmp_path, change=altered)
    tie = Tie(dataset="alpaca", prompt=3, case="ssd+t0+b1", reference="ar+t0+b1", place=7, gap=gap)
    # One of another place is not of this text.
    folder.add([replace(tie, place=6, gap=9.0), tie])
    done = CliRunner().invoke(app, ["bench", "report", str(tmp_path)])
    page = (tmp_path / "report.md").read_text()
    for text in (done.output, page):
        said = " ".join(text.split())
        assert words in said
        assert f"at token 7, where the two tokens are {gap} logits apart" in said
        assert "9 logits" not in said


def test_only_what_must_be_equal_is_compared() -> None:
    cases = [parse_case(each) for each in ("ar", "ssd", "ar+t1", "ssd+t1", "ar+b4")]
    records = [record(case, "a", 0) for case in cases]
    hot = [replace(each, tokens=[5, 6]) if "+t1" in each.case else each for each in records]
    found = check_equality(hot)
    # ssd and the batch of four with ar, ssd+t1 with ar+t1.
    assert (found.num_compared, found.differences) == (3, [])
    shorter = [*hot[:-1], replace(hot[-1], tokens=hot[-1].tokens[:4])]
    assert [each.place for each in check_equality(shorter).differences] == [4]


def test_without_plain_decoding_the_first_is_the_reference() -> None:
    records = [record(parse_case(name), "a", 0) for name in ("ssd", "sd4")]
    found = check_equality([replace(records[0], tokens=[1]), records[1]])
    assert [(each.case, each.reference) for each in found.differences] == [("ssd+t0+b1", "sd4+t0+b1")]
    assert "nothing to compare" in check_equality(records[:1]).in_words(deterministic=True)
