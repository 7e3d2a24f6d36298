"""A run predicted from its own bare forwards and agreement: figures that can be worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.validation.published import Row
from benchmarks.validation.run_rows import run_rows
from ssd.bench.cases import parse_case
from ssd.bench.folder import RunFolder
from ssd.bench.manifest import CaseFacts, Manifest, ModelFacts, Provenance, RunSettings
from ssd.bench.records import CaseRecord, Forwards

CASES = ("ar", "sd4", "ssd", "ar+allcores", "ar+b2", "ssd+t0.8")
VERIFY, STEP, ONE_ROW, NUM_TOKENS = 0.5, 0.1, 0.05, 100
MODEL = ModelFacts(name="big", path="/models/big", num_bytes=1, num_parameters=1)


def write(
    folder: Path,
    *,
    rates: Sequence[float],
    agrees: Sequence[bool],
    cases: Sequence[str] = CASES,
    beside: float = 0.0,
) -> RunFolder:
    """A target of half a second, whatever the rows, a draft of a tenth; `rates` by prompt, of any case."""
    labels = [parse_case(each).label for each in cases]
    settings = RunSettings(
        model="big", draft="small", cases=labels, datasets=["fox"], num_prompts=len(rates), first_prompt=0,
        max_tokens=NUM_TOKENS, seed=1, deterministic=True, prompts={"fox": "digest"},
        engine={"growth": "value"},
    )  # fmt: skip
    hardware = {"processor": "A Processor"}
    session = Provenance(started="2026-05-04T00:00:00+00:00", commit=None, versions={}, hardware=hardware)
    made = RunFolder(folder)
    made.begin(Manifest(settings=settings, sessions=[]))
    facts = [_facts(label) for label in labels]
    draft = replace(MODEL, name="small")
    made.begin_session(
        Manifest(settings=settings, sessions=[session], target=MODEL, draft=draft, cases=facts)
    )
    for prompt, rate in enumerate(rates):
        made.add([_record(label, prompt, rate, beside) for label in labels])
        made.add([_forwards(prompt, agrees)])
    return made


def _facts(label: str) -> CaseFacts:
    mode = parse_case(label).mode
    return CaseFacts(
        label=label, lookahead={"ar": 0, "sd": 4, "ssd": 8}[mode], num_devices=1, draft_parameters=1,
        draft_form=None if mode == "ar" else "model", draft_width=0 if mode == "ar" else 12,
    )  # fmt: skip


def _record(label: str, prompt: int, rate: float, beside: float) -> CaseRecord:
    return CaseRecord(
        dataset="fox", prompt=prompt, case=label, tokens=[*range(prompt, prompt + NUM_TOKENS)],
        num_prompt=50, first_token=0.5, seconds_per_token=1 / rate, rounds=21, accepted=79, drafted=80,
        hits=20, late=0, unknown=0, unheard=0, depths=[21], seconds=1, step_seconds=1, verify_seconds=99,
        wait_seconds=0, target_rows=1, draft_rows=1, draft_steps=40, draft_seconds=40 * STEP * beside,
        round_seconds=20 * VERIFY * beside, round_steps=20 if beside else 0,
    )  # fmt: skip


def _forwards(prompt: int, agrees: Sequence[bool]) -> Forwards:
    return Forwards(
        dataset="fox", prompt=prompt, target_seconds={1: VERIFY, 5: VERIFY, 9: VERIFY},
        draft_seconds={"model": {1: ONE_ROW, 12: STEP}}, agreement={"model": agrees},
    )  # fmt: skip


def with_ranks(folder: RunFolder, ranks: Sequence[int], runs: Sequence[int]) -> RunFolder:
    """The same run, as one that keeps which guess was right, and what the text foretells."""
    kept = [replace(each, ranks={"model": ranks}, runs=runs) for each in folder.forwards()]
    (folder.path / "forwards.jsonl").unlink()
    folder.add(kept)
    return folder


def rows_of(folder: RunFolder) -> dict[str, Row]:
    return {row.what: row for row in run_rows(folder, coverage=0.75)}


def test_cases_are_predicted_from_forwards_and_agreement(tmp_path: Path) -> None:
    rows = rows_of(write(tmp_path, rates=[2.0, 4.0, 2.5], agrees=[True] * NUM_TOKENS))
    # What is not greedy, not alone or not on the target's own cores has no bare forwards of its kind.
    assert set(rows) == {"ar", "sd4", "ssd"}
    assert {row.group for row in rows.values()} == {"big with small on A Processor, measured 2026-05-04"}
    for row, rate in ((rows["ar"], 1 / VERIFY), (rows["sd4"], 5 / (4 * ONE_ROW + VERIFY))):
        assert row.measured == 2.5
        # The median of the prompts' own ratios, times the median of what was measured.
        assert row.predicted == pytest.approx(rate)
        assert row.error == pytest.approx(rate / 2.5 - 1)
    # A draft that is always right gives a token a step, five in the time of a verification.
    assert rows["ssd"].predicted == pytest.approx(1 / STEP, rel=0.1)


def test_a_draft_that_is_never_right_brings_nothing(tmp_path: Path) -> None:
    rows = rows_of(write(tmp_path, rates=[2.0], agrees=[False] * NUM_TOKENS))
    assert rows["sd4"].predicted == pytest.approx(1 / (4 * ONE_ROW + VERIFY))
    assert rows["ssd"].predicted < 0.5 / STEP


def test_contention_is_the_run_s_own_and_said(tmp_path: Path) -> None:
    agrees = ([True] * 7 + [False]) * 12 + [True] * 4
    silent = rows_of(write(tmp_path / "silent", rates=[2.0], agrees=agrees))
    beside = rows_of(write(tmp_path / "beside", rates=[2.0], agrees=agrees, beside=1.25))
    assert "no contention" in silent["ssd"].given
    assert "contention 1.25, 1.25" in beside["ssd"].given
    assert beside["ssd"].predicted == pytest.approx(silent["ssd"].predicted / 1.25, rel=0.02)
    for name in ("ar", "sd4"):
        assert beside[name] == silent[name], "models that take turns do not slow each other"


def test_a_run_without_greedy_texts_is_refused_with_a_remedy(tmp_path: Path) -> None:
    made = write(tmp_path, rates=[2.0], agrees=[True], cases=["ar+b2", "ssd+t0.8"])
    with pytest.raises(ValueError, match="temperature 0 and batch size 1"):
        run_rows(made, coverage=0.75)


def test_ranks_of_the_run_stand_in_for_coverage(tmp_path: Path) -> None:
    """Every third first guess is wrong: if the second is then right, more is foreseen than if none is."""
    agrees = ([True, True, False] * 34)[:NUM_TOKENS]
    found = {}
    for name, other in (("covered", 1), ("missed", -1)):
        folder = write(tmp_path / name, rates=[4.0], agrees=agrees, cases=["ssd"])
        ranks = [0 if right else other for right in agrees]
        found[name] = rows_of(with_ranks(folder, ranks, [0] * NUM_TOKENS))["ssd"]
    assert "coverage" not in found["covered"].given
    assert found["covered"].predicted > 1.1 * found["missed"].predicted


def test_what_the_text_foretells_is_known_where_the_run_kept_it(tmp_path: Path) -> None:
    """A draft that is never right: what is gained comes from the text alone."""
    folder = write(tmp_path, rates=[4.0], agrees=[False] * NUM_TOKENS, cases=["ssd"])
    missed = [-1] * NUM_TOKENS
    plain = rows_of(with_ranks(folder, missed, [0] * NUM_TOKENS))["ssd"].predicted
    foretold = rows_of(with_ranks(folder, missed, [4] * NUM_TOKENS))["ssd"].predicted
    assert foretold > 1.5 * plain
