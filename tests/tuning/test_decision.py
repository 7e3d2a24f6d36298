"""From measurements to a decision and a file: plain decoding is the floor, reasons are in words."""

from dataclasses import replace

import yaml

from ssd.bench.cases import Case
from ssd.tuning.confirm import CaseRates, winner
from ssd.tuning.search import PredictedCase
from ssd.tuning.tuned_file import Tuned, as_yaml, measured_cores, reasons, settings_of
from tests.tuning.conftest import made_up_facts

PLAIN = CaseRates(Case(mode="ar"), [10.0, 20.0, 10.0] * 2)
FAST = Case(mode="ssd", lookahead=8, draft_width=16, draft_precision="int8", growth="value", backup="ngram")


def tuned(rates: list[float], **given: object) -> Tuned:
    measured = [PLAIN, CaseRates(FAST, rates * 2)]
    predicted = [PredictedCase(FAST, 31.0), PredictedCase(Case(mode="ar"), 11.0)]
    facts = made_up_facts(acceptance=0.8)
    return Tuned(
        "big", {"model": "small", "cores": (1,)}, given, facts, predicted, measured, winner(measured, PLAIN)
    )


def test_speed_is_judged_within_a_prompt() -> None:
    assert CaseRates(FAST, [15.0, 30.0, 5.0] * 2).over(PLAIN).value == 1.5
    assert PLAIN.rate == 12.0


def test_speculation_that_does_not_pay_is_not_written() -> None:
    """Not even where it is faster by less than the noise."""
    for rates in ([9.0, 18.0, 9.0], [10.5, 21.5, 9.8], [14.0, 28.0, 9.9]):
        result = tuned(rates, cores=(0,))
        assert settings_of(result) == {"model": "big", "mode": "ar", "cores": [0]}
        assert "does not pay" in reasons(result)[0]
        assert FAST.name in reasons(result)[0]


def test_the_cores_in_the_file_are_those_it_ran_on() -> None:
    spread = Case(mode="sd", all_cores=True)
    assert measured_cores(spread, target=(0,), draft=(1, 2)) == ({"cores": (0, 1, 2)}, {"cores": ()})
    assert measured_cores(FAST, target=(0,), draft=(1, 2)) == ({"cores": (0,)}, {"cores": (1, 2)})
    assert measured_cores(FAST, target=(), draft=()) == ({}, {}), "on a GPU"


def test_of_what_is_clearly_faster_the_fastest_wins() -> None:
    """A higher median with a prompt that was slower than plain decoding is not clear."""
    plain, lucky = CaseRates(Case(mode="ar"), [10.0] * 4), CaseRates(FAST, [9.0, 9.0, 20.0, 20.0])
    steady = CaseRates(Case(mode="sd", lookahead=4), [12.0, 12.1, 12.2, 12.0])
    steadier = CaseRates(Case(mode="sd", lookahead=5), [11.0, 11.0, 11.0, 11.0])
    assert lucky.over(plain).value > steady.over(plain).value
    assert winner([plain, lucky, steady, steadier], plain) is steady
    assert winner([plain, lucky], plain) is plain


def test_one_lucky_candidate_of_many_is_not_clear() -> None:
    """Faster on eight of nine prompts: clear for one candidate, not for one of five."""
    plain = CaseRates(Case(mode="ar"), [10.0] * 9)
    lucky = CaseRates(FAST, [9.9, 10.5, 10.6, 10.7, 10.8, 10.9, 11.0, 11.1, 11.2])
    others = [CaseRates(Case(mode="sd", lookahead=each), [9.0] * 9) for each in (2, 3, 4, 5)]
    assert winner([plain, lucky], plain) is lucky
    assert winner([plain, lucky, *others], plain) is plain


def test_few_prompts_have_no_interval_and_need_a_margin() -> None:
    plain = CaseRates(Case(mode="ar"), [10.0])
    assert winner([plain, CaseRates(FAST, [10.1])], plain) is plain
    assert winner([plain, fast := CaseRates(FAST, [10.3])], plain) is fast


def test_what_prompts_held_out_say_is_in_the_file() -> None:
    seen = tuned([25.0, 50.0, 26.0])
    unseen = replace(seen, held_out=CaseRates(FAST, [14.0, 30.0, 12.0] * 2).over(PLAIN))
    assert "not seen" not in as_yaml(seen)
    assert "was 2.50 × as fast as plain decoding on the prompts that it was chosen by" in reasons(seen)[0]
    assert reasons(unseen)[1] == "on 6 prompts that tuning has not seen: 1.40 (1.20–1.50) × plain decoding."


def test_a_quantised_file_may_be_faster_elsewhere() -> None:
    result = tuned([25.0, 50.0, 26.0])
    assert not any("llama.cpp" in sentence for sentence in reasons(result))
    assert any("llama.cpp" in sentence for sentence in reasons(replace(result, model="big.gguf")))


def test_the_file_has_settings_and_reasons() -> None:
    result = tuned([25.0, 50.0, 25.0], max_model_len=2048)
    text = as_yaml(result)
    assert yaml.safe_load(text) == {
        "model": "big",
        "mode": "ssd",
        "max-model-len": 2048,
        "lookahead": 8,
        "backup": "ngram",
        "draft": {"model": "small", "cores": [1], "width": 16, "precision": "int8", "growth": "value"},
    }
    comments = " ".join(line[2:] for line in text.splitlines() if line.startswith("#"))
    assert "was 2.50 × as fast as plain decoding" in comments
    assert "predicted 31.00" in comments
    assert "right at 80% of places" in comments
