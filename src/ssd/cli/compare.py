"""`ssd generate --compare`: the same texts with the draft and by the target alone, in turns.

One loaded target generates each text in every way, turn after turn, so that all ways meet the same machine.
The prefix cache is off: it would favour the ways that run later. Knows how to judge a handful of runs of one
prompt; `ssd bench run` measures many prompts and gives intervals.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ssd.bench.statistics import in_turn
from ssd.cli.explain import summary
from ssd.cli.progress import waiting
from ssd.processes.other_load import BUSY, OtherLoad
from ssd.processes.terminal import escaped

if TYPE_CHECKING:
    from ssd.engine.llm import LLM
    from ssd.engine.outputs import RequestOutput, SpeculationStats
    from ssd.sampling import SamplingParams

TURNS = 3
"""How often each way generates the texts."""
_WARM_UP_TOKENS = 8
_LEAST_TOKENS = 32
"""A run of fewer tokens is over before its speed can be told."""
_MOST_SPREAD = 1.5
"""The largest ratio of a comparison, as a multiple of its smallest, from which nothing can be told."""
_ROOM = 1.1
"""How far a measured ratio may lie above what the rounds allow before something else must explain it."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to generate: with the draft, or by the target alone on some cores."""

    name: str
    enter: Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Run:
    """What one way generated in one turn, and how long all the texts took together."""

    outputs: Sequence[RequestOutput]
    seconds: float

    @property
    def tokens(self) -> list[Sequence[int]]:
        return [each.token_ids for output in self.outputs for each in output.outputs]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Ratios:
    """Speeds with the draft over those of another way, turn by turn."""

    values: Sequence[float]

    @classmethod
    def of(cls, drafted: Sequence[float], alone: Sequence[float]) -> Ratios:
        return cls([ours / other for ours, other in zip(drafted, alone, strict=True)])

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.values):.2f}–{max(self.values):.2f})"


def compare(llm: LLM, prompts: Sequence[Any], params: SamplingParams, *, deterministic: bool) -> bool:
    """Prints texts, speeds and a verdict; returns whether all tokens are equal. The engine has a draft."""
    if params.seed is None:
        params = dataclasses.replace(params, seed=0)  # Without one, each run would draw its own texts.
    ways = _ways(llm)
    short = dataclasses.replace(params, max_tokens=_WARM_UP_TOKENS)
    with waiting("warming up"):
        for way in ways:
            _run(llm, way, prompts, short)
    # All of both models' cores: the engine has pinned this process to those of the target.
    cores = (*llm.cores.target, *llm.cores.draft)
    load, runs = OtherLoad(cores), {way.name: list[Run]() for way in ways}
    for turn in range(TURNS):
        for number, way in enumerate(in_turn(ways, turn)):
            with waiting(f"run {turn * len(ways) + number + 1} of {TURNS * len(ways)}, {way.name}"):
                runs[way.name].append(_run(llm, way, prompts, params))
    return _report(runs, load.share(), deterministic=deterministic)


def _ways(llm: LLM) -> list[Way]:
    """With the draft first, then the target alone on its own cores, then on all if the draft has some."""
    cores = llm.cores
    named = f" on core {_listed(cores.target)}" if cores.target else ""
    ways = [Way("with the draft", nullcontext), Way(f"target alone{named}", llm.target_alone)]
    if cores.target and cores.draft:
        everywhere = _listed(sorted((*cores.target, *cores.draft)))
        ways.append(Way(f"target alone on cores {everywhere}", lambda: llm.target_alone(all_cores=True)))
    return ways


def _listed(cores: Sequence[int]) -> str:
    return ",".join(map(str, cores))


def _run(llm: LLM, way: Way, prompts: Sequence[Any], params: SamplingParams) -> Run:
    with way.enter():
        started = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return Run(outputs, time.perf_counter() - started)


def _report(runs: dict[str, list[Run]], load: float | None, *, deterministic: bool) -> bool:
    console = Console(soft_wrap=True, highlight=False)
    first, *others = runs
    drafted, rates = runs[first], {name: [run.rate for run in each] for name, each in runs.items()}
    _show_texts(console, drafted[0].outputs)
    width = max(map(len, runs))
    console.print(f"{'':{width}}  tokens a second")
    for name, values in rates.items():
        beside = "" if name == first else f"   with the draft {Ratios.of(rates[first], values)} × as fast"
        console.print(f"{name:{width}}  {statistics.median(values):15.2f}{beside}")
    speculation = _total(drafted)
    num_tokens = sum(run.num_tokens for run in drafted)
    per_round = num_tokens / max(1, speculation.rounds)
    console.print(f"{per_round:.2f} tokens a round: {summary(speculation, num_tokens)}", style="dim")
    ratios = [Ratios.of(rates[first], rates[name]) for name in others]
    console.print(verdict(ratios, per_round, drafted[0].num_tokens, load), style="bold")
    return _show_equality(console, list(chain(*runs.values())), deterministic=deterministic)


def verdict(ratios: Sequence[Ratios], per_round: float, num_tokens: int, load: float | None) -> str:
    """One sentence. `ratios`: over the target on its own cores, then, if there are more, on all cores."""
    own, fastest_alone = ratios[0], min(ratios, key=lambda each: each.median)
    if load is not None and load > BUSY:
        return (
            f"This machine is too busy to tell: other programs took {load:.0%} of the cores' time. "
            "End them and compare again."
        )
    if num_tokens < _LEAST_TOKENS:
        return f"{num_tokens} tokens are too few to tell: raise --max-tokens."
    for each in ratios:
        if max(each.values) > _MOST_SPREAD * min(each.values):
            return f"The turns differ too much to tell: {each} times the target alone. Compare again."
    if own.median > _ROOM * per_round:
        return (
            f"Measured {own} times the target alone, but {per_round:.2f} tokens a round allow no more than "
            f"that number: the difference does not come from drafting alone. Compare again."
        )
    said = f"{fastest_alone} times the target alone{_where(ratios)}"
    unknown = " Whether other programs computed meanwhile cannot be told here." if load is None else ""
    if min(fastest_alone.values) > 1:
        return f"Faster in all {TURNS} turns: {said}.{unknown}"
    if max(fastest_alone.values) < 1:
        return f"Slower in all {TURNS} turns: {said}. Do not use this draft here.{unknown}"
    return f"Neither faster nor slower in all {TURNS} turns: {said}.{unknown}"


def _where(ratios: Sequence[Ratios]) -> str:
    return " on its best cores" if len(ratios) > 1 else ""


def _total(runs: Sequence[Run]) -> SpeculationStats:
    from ssd.engine.outputs import SpeculationStats

    found = [each.speculation for run in runs for output in run.outputs for each in output.outputs]
    names = [field.name for field in dataclasses.fields(SpeculationStats)]
    return SpeculationStats(**{name: sum(getattr(each, name) for each in found) for name in names})


def _show_texts(console: Console, outputs: Sequence[RequestOutput]) -> None:
    for output in outputs:
        for each in output.outputs:
            console.print(escaped(f"{output.prompt or ''}{each.text}"), markup=False)
    console.print()


def _show_equality(console: Console, runs: Sequence[Run], *, deterministic: bool) -> bool:
    for run in runs:
        if (difference := first_difference(runs[0].tokens, run.tokens)) is not None:
            text, place = difference
            console.print(
                f"Tokens: two runs of text {text + 1} differ from token {place + 1} on.", style="red"
            )
            console.print(_FAULT if deterministic else _TIE)
            return False
    console.print(f"Tokens: all {runs[0].num_tokens} equal in {len(runs)} runs.", style="green")
    return True


_TIE = "Probably a tie that rounding decided: --deterministic excludes ties, so add that and compare again."
_FAULT = "--deterministic excludes ties, so this is a defect: please report it with this command."


def first_difference(
    some: Sequence[Sequence[int]], others: Sequence[Sequence[int]]
) -> tuple[int, int] | None:
    """The first text that differs, and the place of its first other token."""
    for number, (left, right) in enumerate(zip(some, others, strict=True)):
        if list(left) != list(right):
            pairs = enumerate(zip(left, right, strict=False))
            return number, next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))
    return None
