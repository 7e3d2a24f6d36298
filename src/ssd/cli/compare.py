"""`ssd generate --compare`: generates each text with the draft and by the target alone, and compares them.

It shows on the user's machine what is promised: hits, and equal tokens. `ssd bench run` gives speeds that
can be trusted: it measures in turns, with intervals.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ssd.cli.explain import summary

if TYPE_CHECKING:
    from ssd.engine.llm import LLM
    from ssd.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class TimedTexts:
    tokens: Sequence[Sequence[int]]
    seconds: float

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


def compare(llm: LLM, prompts: Sequence[Any], params: SamplingParams, *, deterministic: bool) -> bool:
    """Returns whether all tokens are equal. The engine must have a draft; afterwards it has none."""
    drafted = _generated(llm, prompts, params)
    speculation = llm.stats.speculation
    llm.switch_mode("ar")
    alone = _generated(llm, prompts, params)
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"with the draft   {_speed(drafted)}, {drafted.rate / alone.rate:.2f} times as fast")
    console.print(f"                 {summary(speculation, drafted.num_tokens)}", style="dim")
    console.print(f"target alone     {_speed(alone)}, on its cores of before")
    difference = first_difference(drafted.tokens, alone.tokens)
    if difference is None:
        console.print(f"tokens           all {alone.num_tokens} equal", style="green")
        return True
    text, place = difference
    console.print(f"tokens           text {text + 1} differs from token {place + 1} on", style="red")
    console.print("                 " + (_FAULT if deterministic else _TIE))
    return False


_TIE = "probably a tie that rounding decided: with --deterministic there are none, so add that and look again"
_FAULT = "--deterministic excludes ties: this is a defect, please report it with this command"


def first_difference(
    some: Sequence[Sequence[int]], others: Sequence[Sequence[int]]
) -> tuple[int, int] | None:
    """The first text that differs, and the place of its first other token."""
    for number, (left, right) in enumerate(zip(some, others, strict=True)):
        if list(left) != list(right):
            pairs = enumerate(zip(left, right, strict=False))
            return number, next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))
    return None


def _generated(llm: LLM, prompts: Sequence[Any], params: SamplingParams) -> TimedTexts:
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty())
    seconds = time.perf_counter() - started
    return TimedTexts([each.token_ids for output in outputs for each in output.outputs], seconds)


def _speed(texts: TimedTexts) -> str:
    return f"{texts.num_tokens} tokens in {texts.seconds:.2f} s, {texts.rate:.1f} tok/s"
