"""The rolling tree under a simulated clock: its limits are known exactly, and it never passes its roof."""

import pytest

from ssd.planning.followed_text import Shape
from ssd.planning.rolling import Tally, simulate, simulate_batch
from ssd.planning.rounds import ar_rate, roof
from ssd.planning.text import MISSED, Text, drawn_text, replayed_text
from ssd.planning.times import Forward, PairTimes


def rate(text: Text, verify: float, draft: float, **settings: object) -> float:
    return run(text, verify, draft, **settings).rate


def run(text: Text, verify: float, draft: float, **settings: object) -> Tally:
    shape = Shape(**{"lookup": 0, **settings})  # type: ignore[arg-type]
    return simulate([text], PairTimes(Forward(verify), Forward(draft)), shape)


def test_a_draft_that_is_always_right_reaches_whichever_roof_is_lower() -> None:
    sure = drawn_text(1.0, 1.0, length=2000, seed=0)
    assert rate(sure, 1.0, 0.01) == pytest.approx(9.0, rel=0.03)  # lookahead 8 and the target's own
    assert rate(sure, 1.0, 0.5) == pytest.approx(2.0, rel=0.01)  # one token a draft step
    assert rate(sure, 1.0, 0.01, lookahead=4) == pytest.approx(5.0, rel=0.03)


def test_a_draft_that_is_never_right_leaves_plain_decoding() -> None:
    hopeless = replayed_text([MISSED] * 400, seed=0)
    assert rate(hopeless, 1.0, 0.3, backup="none") == pytest.approx(1.0, rel=0.01)
    # Waiting for it is given up, or nearly.
    assert 0.85 < rate(hopeless, 1.0, 0.3) <= 1.0


@pytest.mark.parametrize("acceptance", [0.5, 0.7, 0.9, 0.98])
@pytest.mark.parametrize("draft", [0.05, 0.2, 0.45, 0.9])
def test_it_stays_between_plain_decoding_and_its_roof(acceptance: float, draft: float) -> None:
    text = drawn_text(acceptance, 0.75, length=800, seed=1)
    times = PairTimes(Forward(1.0), Forward(draft))
    found = simulate([text], times, Shape(lookup=0)).rate
    assert 0.95 * ar_rate(times) < found < 1.02 * roof(times, text, 8, 12).rate


def test_more_of_a_good_thing_is_not_slower() -> None:
    text = drawn_text(0.85, 0.75, length=800, seed=2)
    assert rate(text, 1.0, 0.1) > rate(text, 1.0, 0.3) > rate(text, 1.0, 0.6)
    assert rate(text, 1.0, 0.2, width=12) > 1.03 * rate(text, 1.0, 0.2, width=1)
    better = drawn_text(0.95, 0.75, length=800, seed=2)
    assert rate(better, 1.0, 0.2) > 1.1 * rate(text, 1.0, 0.2)
    covered, bare = (drawn_text(0.85, share, length=800, seed=2) for share in (1.0, 0.1))
    assert rate(covered, 1.0, 0.1) > 1.05 * rate(bare, 1.0, 0.1)


def test_width_buys_hits() -> None:
    text = drawn_text(0.8, 0.9, length=800, seed=3)
    assert run(text, 1.0, 0.15, width=16).hit_rate > run(text, 1.0, 0.15, width=2).hit_rate + 0.1


def test_runs_lift_the_limit_of_one_token_a_draft_step() -> None:
    text = replayed_text([0] * 1200, seed=0, runs=[3, 0, 0, 0] * 300)
    without = run(text, 1.0, 0.5, backup="none")
    lifted = run(text, 1.0, 0.5, backup="none", lookup=4)
    assert without.tokens / without.draft_steps == pytest.approx(1.0, abs=0.02)
    assert lifted.rate > 1.2 * without.rate


def test_a_verification_that_grows_with_its_rows_is_kept_short() -> None:
    """The controller in it is the engine's: where rows are dear, fewer are verified."""
    text = drawn_text(0.6, 0.5, length=800, seed=4)
    dear = PairTimes(Forward(1.0, slope=0.3), Forward(0.05))
    assert simulate([text], dear, Shape(lookup=0)).rate > 1.3 * ar_rate(dear)
    dearest = PairTimes(Forward(0.5, slope=0.5), Forward(0.05))
    assert simulate([text], dearest, Shape(lookup=0)).rate > 0.93 * ar_rate(dearest)


def test_a_batch_shares_the_width_of_a_step() -> None:
    texts = [drawn_text(0.9, 0.75, length=400, seed=seed) for seed in range(8)]
    times = PairTimes(Forward(1.0), Forward(0.15))
    alone = simulate_batch(texts[:1], times, Shape(width=12), num_tokens=200).rate
    wide, narrow = (simulate_batch(texts, times, Shape(width=w), num_tokens=800).rate / 8 for w in (48, 8))
    assert narrow < wide < 1.1 * alone


def test_contention_slows_both_sides() -> None:
    text = drawn_text(0.9, 0.75, length=800, seed=5)
    free = PairTimes(Forward(1.0), Forward(0.4))
    shared = PairTimes(Forward(1.0), Forward(0.4), target_beside=1.25, draft_beside=1.25)
    ratio = simulate([text], free, Shape()).rate / simulate([text], shared, Shape()).rate
    assert ratio == pytest.approx(1.25, rel=0.02)


def test_it_repeats_itself() -> None:
    text = drawn_text(0.8, 0.6, length=300, seed=6)
    assert run(text, 1.0, 0.3) == run(text, 1.0, 0.3)


@pytest.mark.parametrize("growth", ["geometric", "uniform"])
def test_the_engine_s_other_policies_run_too(growth: str) -> None:
    text = drawn_text(0.8, 0.8, length=400, seed=7)
    assert rate(text, 1.0, 0.2, growth=growth) > 1.2


def test_guesses_from_the_text_cost_their_rows() -> None:
    """A draft that is never right, and a text that is: what a row costs decides how much that is worth."""
    text = replayed_text([MISSED] * 400, seed=0, runs=[4] * 400)
    shape = Shape(lookup=0, backup="ngram")
    free, dear = (
        simulate([text], PairTimes(Forward(1.0, slope=slope), Forward(0.3)), shape).rate
        for slope in (0.0, 0.6)
    )
    assert free > 4.5
    # A guess is right nearly always, and still two rows take 1.6 times as long as one.
    assert dear < 1.7
