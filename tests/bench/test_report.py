"""Reports say what the records say: figures worked out here by other means."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from ssd.bench.facts import about_roofs
from ssd.bench.figures import Figures, Roof
from ssd.bench.manifest import CaseFacts
from ssd.bench.records import CaseRecord, Forwards
from ssd.bench.report import markdown
from ssd.bench.roof import roof_of
from ssd.bench.summary import RunFigures
from tests.bench.made_up import CASES, DRAFT, NUM_TOKENS, SPEED, TARGET, WOBBLE, at_speed, write_run


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> RunFigures:
    return RunFigures(write_run(tmp_path_factory.mktemp("made-up")))


def row_of(figures: RunFigures, dataset: str, case: str) -> Figures:
    return next(row for row in figures.rows if (row.dataset, row.case.name) == (dataset, case))


def test_figures_worked_out_by_hand(figures: RunFigures) -> None:
    row = row_of(figures, "alpaca", "ssd")
    rates = [9.0 * wobble / 1.25 for wobble in WOBBLE]
    assert row.rate.value == pytest.approx(statistics.median(rates))
    assert row.output_rate == pytest.approx(statistics.harmonic_mean(rates))
    assert row.milliseconds_per_token.value == pytest.approx(statistics.median(1000 / each for each in rates))
    assert row.over_ar is not None
    assert row.over_ar.value == pytest.approx(9 / 4)
    assert row.over_sd is not None
    assert row.over_sd.value == pytest.approx(9 / 6)
    assert (row.accepted_per_round, row.hit_rate, row.late_rate, row.unknown_rate) == (1.0, 0.8, 0.1, 0.1)
    assert row.verify_milliseconds == pytest.approx(statistics.mean(0.8 * 20e3 / each for each in rates) / 9)
    assert row.draft_milliseconds == pytest.approx(statistics.mean(0.04 * 20e3 / each for each in rates) / 15)
    assert row.tokens_per_draft_step == pytest.approx(20 / 15)
    assert row.shares.verifying == pytest.approx(0.9)
    assert row.shares.host == pytest.approx(0.05)
    assert row.rate_per_device == pytest.approx(row.output_rate / 2)
    flops = 2 * (TARGET.num_parameters * (50 + NUM_TOKENS + 10) + DRAFT.num_parameters * 100)
    assert row.tokens_per_gflop == pytest.approx(NUM_TOKENS / (flops / 1e9))
    # Three of four agree: rounds of four tokens; T_v = 0.3 s, T_d = 0.1 s.
    assert row.roof is not None
    assert row.roof.rate == pytest.approx(min(4 / 0.3, 1 / 0.1))
    assert row.efficiency == pytest.approx(row.rate.value / 10)
    in_turns = row_of(figures, "humaneval", "sd4").shares
    assert (in_turns.drafting, in_turns.host) == pytest.approx((0.04, 0.01)), "drafting is no host work"
    plain = row_of(figures, "humaneval", "ar")
    assert (plain.over_ar, plain.over_sd, plain.roof, plain.hit_rate) == (None, None, None, None)


def test_a_roof_counts_everything_that_a_round_can_gain() -> None:
    """Verifications as long as pays best, siblings in trees, and runs: else texts come out above it."""
    facts = CaseFacts(
        label="ssd+t0+b1", lookahead=8, draft_form="model", draft_width=12, draft_parameters=1, num_devices=2
    )
    text = Forwards(
        dataset="a", prompt=0, target_seconds={1: 0.1, 9: 0.18}, draft_seconds={"model": {12: 0.1}},
        agreement={"model": [True, False] * 6}, ranks={"model": [0, 1] * 6}, runs=[3] + [0] * 11,
    )  # fmt: skip

    def roof(text: Forwards, *, draft_guesses: int = 1, draft_lookup: int = 0) -> Roof:
        found = roof_of([text], replace(facts, draft_guesses=draft_guesses, draft_lookup=draft_lookup))
        assert found is not None
        return found

    # A drafted token is right in every round, a second one in none.
    chain = roof(text)
    assert (chain.verify_rows, chain.tokens_a_round) == (2, 2)
    assert chain.verify_rate == pytest.approx(2 / 0.11)
    assert chain.rate == chain.draft_rate == pytest.approx(1 / 0.1)
    # Where rows cost more than they gain, plain decoding is the roof, and the draft does not matter.
    dear = replace(text, target_seconds={1: 0.05, 9: 0.9})
    assert roof(dear).verify_rows == 1
    assert roof(dear).rate == pytest.approx(1 / 0.05)
    # With siblings every token is foreseen: twelve tokens in two rounds of six rows.
    tree = roof(text, draft_guesses=4)
    assert (tree.verify_rows, tree.tokens_a_round, tree.tokens_a_step) == (6, 6, 1)
    # Ten steps of the draft: the first one goes three tokens far.
    assert roof(text, draft_lookup=2).tokens_a_step == pytest.approx(12 / 10)


def test_a_roof_that_is_exceeded_was_measured_too_low(tmp_path: Path) -> None:
    figures = RunFigures(write_run(tmp_path, change=at_speed(3)))
    assert "measured too low" in about_roofs(figures)
    assert "measured too low" in markdown(figures)


def test_who_was_chosen_is_judged_by_other_prompts(tmp_path: Path) -> None:
    """On even prompts sd3 is lucky, so it is the best there; the rest say what it is worth."""

    def lucky(each: CaseRecord) -> CaseRecord:
        factor = 3.0 if each.case.startswith("sd3") and each.prompt % 2 == 0 else 1.0
        return replace(each, seconds_per_token=each.seconds_per_token / factor)

    cases = ["sd3", "sd4", "ssd", "ssd+int8"]
    figures = RunFigures(
        write_run(tmp_path, cases=cases, datasets=["humaneval"], num_prompts=12, change=lucky)
    )
    row = row_of(figures, "humaneval", "ssd")
    assert row.over_sd is not None
    assert row.over_sd.value == pytest.approx(9 / 5)
    assert row.over_sd.count == 6


def test_all_data_sets_together(figures: RunFigures) -> None:
    rates = [10 * wobble / slow for wobble in WOBBLE for slow in (1, 1.25)]
    row = row_of(figures, "all", "ssd+int8")
    assert row.rate.value == pytest.approx(statistics.median(rates))
    assert row.rate.count == 12
    assert figures.datasets == ["humaneval", "alpaca", "all"]


def test_the_page_holds_the_figures(figures: RunFigures) -> None:
    page = markdown(figures)
    for dataset, slow in (("humaneval", 1.0), ("alpaca", 1.25)):
        assert f"{dataset}, 6 prompts" in page
        for case in CASES:
            median = SPEED[case] * statistics.median(WOBBLE) / slow
            assert f"{median:.2f}"[:4] in page, (dataset, case)
    assert "2.25 (2.25–2.25)" in page
    assert "All 36 texts equal those of plain decoding" in page
    assert "Made-up Processor" in page
    assert "right at 75% of places, one of the next three at 80% of the rest" in page


def test_texts_that_ran_together_are_one_observation(tmp_path: Path) -> None:
    cases = ["ar", "ssd", "ar+b4", "ssd+b4"]
    figures = RunFigures(write_run(tmp_path, cases=cases, datasets=["humaneval"], num_prompts=12))
    assert "ssd+t0+b4" in markdown(figures)
    row = next(row for row in figures.rows if row.case.label == "ssd+t0+b4")
    rates = [9 * wobble / 4**0.3 for wobble in WOBBLE]
    assert row.output_rate == pytest.approx(4 * statistics.harmonic_mean(rates))
    assert (row.rate.count, row.num_prompts) == (3, 12)
    assert row.over_ar is not None
    assert row.over_ar.value == pytest.approx(9 / 4)
    assert row.over_ar.count == 3
    paces = [statistics.mean(1 / rates[p % 6] for p in range(start, start + 4)) for start in (0, 4, 8)]
    assert row.milliseconds_per_token.value == pytest.approx(1e3 * statistics.median(paces))
