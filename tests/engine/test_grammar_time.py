"""A grammar whose masks are dear ends its own request, and nobody else's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ssd import LLM, Grammar, SamplingParams
from ssd.engine import grammar_time
from ssd.engine.grammar import GrammarCompiler
from ssd.engine.grammar_time import AT_ONCE_SECONDS, EngineTime, GrammarTime
from ssd.sampling.constraint import GrammarError
from tests.tiny import tiny_tokenizer
from tests.wide_grammar import wide_grammar


class Clocks:
    """The time that passes, and the part of it that was computed."""

    def __init__(self, *, num_requests: int = 1) -> None:
        self.now = self.computed = 0.0
        engine = EngineTime(lambda: self.now)
        self.requests = [GrammarTime(engine, lambda: self.computed) for _ in range(num_requests)]
        self.spent = self.requests[0]

    def compute(self, seconds: float, *, num_masks: int = 1, request: int = 0) -> None:
        if not self.requests[request].is_used_up:
            with self.requests[request].counted(num_masks):
                self.computed += seconds
                self.now += seconds

    def step(self, forward: float, masks: Sequence[float]) -> None:
        self.now += forward
        for request, seconds in enumerate(masks):
            self.compute(seconds, request=request)


def test_a_share_of_the_time_may_go_into_masks_for_ever() -> None:
    clocks = Clocks()
    for _ in range(1000):
        clocks.compute(0.04)
        clocks.now += 0.06
    assert not clocks.spent.is_used_up


def test_more_than_a_share_is_used_up_soon_and_stays_so() -> None:
    clocks, num_masks = Clocks(), 0
    while not clocks.spent.is_used_up:
        clocks.compute(0.06)
        num_masks += 1
    assert num_masks * 0.06 <= 3 * AT_ONCE_SECONDS
    clocks.now += 3600
    clocks.compute(0.0)
    assert clocks.spent.is_used_up


def test_requests_do_not_pay_for_each_other_with_the_time_they_take() -> None:
    """Two requests with masks of 50 ms each beside forwards of 20 ms went on for ever: each took less than
    half of a time that the other one made long."""
    clocks = Clocks(num_requests=2)
    for _ in range(1000):
        clocks.step(0.02, [0.05, 0.05])
    assert all(each.is_used_up for each in clocks.requests)
    assert clocks.computed <= 2 * 3 * AT_ONCE_SECONDS


def test_many_requests_together_have_one_share() -> None:
    """Eight of 15 ms beside forwards of 20 ms: one could go on for ever."""
    clocks = Clocks(num_requests=8)
    for _ in range(1000):
        clocks.step(0.02, [0.015] * 8)
    before = clocks.computed
    for _ in range(1000):
        clocks.step(0.02, [0.015] * 8)
    assert clocks.computed - before <= 1000 * 0.02 + 8 * AT_ONCE_SECONDS


def test_a_cheap_request_beside_dear_ones_goes_on() -> None:
    """Even where new dear ones take the place of those that end, for ever."""
    clocks = Clocks(num_requests=5)
    engine = clocks.spent._engine
    for _ in range(5000):
        clocks.step(0.02, [0.0005, 0.1, 0.1, 0.1, 0.1])
        for number, each in enumerate(clocks.requests):
            if number and each.is_used_up:
                clocks.requests[number] = GrammarTime(engine, lambda: clocks.computed)
    assert not clocks.spent.is_used_up


def test_many_cheap_requests_finish_though_they_take_more_than_the_share() -> None:
    clocks = Clocks(num_requests=20)
    for _ in range(2500):
        clocks.step(0.005, [3e-4] * 20)
    assert not any(each.is_used_up for each in clocks.requests)


def test_a_busy_machine_uses_nothing_up() -> None:
    """Time that others compute is not the grammar's."""
    clocks = Clocks()
    with clocks.spent.counted(1):
        clocks.now += 60
    assert not clocks.spent.is_used_up


def test_the_dearer_the_masks_the_fewer_drafts_are_verified() -> None:
    cheap, dear = Clocks(), Clocks()
    for _ in range(50):
        cheap.compute(5e-5)
        dear.compute(2e-3)
    assert cheap.spent.most_drafted >= 64
    assert dear.spent.most_drafted <= 2


@pytest.mark.parametrize("num_rules", [900, 1500])
def test_a_mask_that_looks_at_too_much_is_refused_before_it_is_made(num_rules: int) -> None:
    """One request with such a grammar froze the engine for half a minute; by the library's own limit the
    masks of both are made."""
    compiler = GrammarCompiler(wordy_tokenizer(), (1,), 8192)
    with pytest.raises(GrammarError, match=r"too complex .*Too many items"):
        compiler.compiled(Grammar("lark", wide_grammar(num_rules, "start: ({})+")))


def wordy_tokenizer() -> Any:
    """Masks take time by the number of tokens that fit: one for every two letters, and more."""
    tokenizer = tiny_tokenizer()
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokenizer.add_tokens([a + b + c for a in letters for b in letters for c in "aeiouy"])
    return tokenizer


def test_a_request_whose_time_is_used_up_ends_alone(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its texts end with an error that says why; those beside it are what they are without it."""
    monkeypatch.setattr(grammar_time, "AT_ONCE_SECONDS", 0.0)
    monkeypatch.setattr(grammar_time, "_SHARE", 0.0)
    with LLM(str(tiny_llama), device="cpu", deterministic=True, show_progress=False) as llm:
        free = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        bound = SamplingParams(temperature=1, seed=1, max_tokens=8, n=3, grammar=Grammar("regex", "[ab]{9}"))
        alone = llm.generate([[5, 6]], free, use_tqdm=False)[0].outputs[0].text
        ended, beside = llm.generate([[5, 6], [5, 6]], [bound, free], use_tqdm=False)
    assert {each.finish_reason for each in ended.outputs} == {"error"}
    assert all("too much of the engine's time" in str(each.stop_reason) for each in ended.outputs)
    assert beside.outputs[0].text == alone
