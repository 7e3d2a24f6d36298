"""The search: what it promises first is what the closed form says, and it knows when to leave it."""

import pytest

from ssd.bench.cases import Case
from ssd.tuning.search import predicted_rate, search, shortlist
from tests.tuning.conftest import made_up_facts


def test_a_good_draft_that_works_ahead_wins_and_int8_is_preferred_where_it_is_faster() -> None:
    found = search(made_up_facts(acceptance=0.9, draft=0.4, int8=0.25))
    assert found[0].case.mode == "ssd"
    assert found[0].case.draft_precision == "int8"
    rates = {each.case.mode: each.rate for each in reversed(found)}
    assert rates["ssd"] > rates["sd"] > rates["ar"]


def test_a_draft_that_is_never_right_promises_nothing() -> None:
    facts = made_up_facts(acceptance=0.0)
    found = search(facts)
    assert found[0].rate <= 1.01 * predicted_rate(facts, Case(mode="ar"))


def test_a_draft_as_slow_as_the_target_is_not_for_turns() -> None:
    facts = made_up_facts(acceptance=0.8, draft=1.0, int8=1.0)
    plain = predicted_rate(facts, Case(mode="ar"))
    assert predicted_rate(facts, Case(mode="sd", lookahead=4)) < plain


def test_the_search_is_not_far_from_trying_everything() -> None:
    facts = made_up_facts(acceptance=0.8, draft=0.3, int8=0.3)
    best = search(facts)[0].rate
    everything = [
        predicted_rate(facts, Case(mode="ssd", draft_width=width, lookahead=lookahead))
        for width in (4, 12, 24)
        for lookahead in (4, 8, 16)
    ]
    assert best > 0.97 * max(everything)


def test_predicted_rates_of_simple_modes_by_hand() -> None:
    facts = made_up_facts(acceptance=1.0, draft=0.25)
    assert predicted_rate(facts, Case(mode="ar")) == pytest.approx(1.0)
    assert predicted_rate(facts, Case(mode="sd", lookahead=4)) == pytest.approx(5 / 2)


def test_the_shortlist_has_each_mode_and_no_twins() -> None:
    found = search(made_up_facts(acceptance=0.85))
    few = shortlist(found, 4)
    assert [each.case.mode for each in few[:2]] == ["ssd", "sd"]
    assert len({each.case for each in few}) == len(few) <= 4
    assert len(shortlist(found, 1)) == 1
    assert all(each.case.mode != "ar" for each in few)
