"""Measures the inputs of predictions: bare forwards by rows, and how target and draft slow each other.

Bare forwards take turns, so that drift affects all alike; each runs on the device and cores that the engine
would use. A short run of SSD shows how much longer forwards take while target and draft compute at the same
time, since they share memory.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ssd.bench.bare_forward import BareForward, load_bare_draft, median_seconds
from ssd.bench.cases import Case
from ssd.bench.engines import CaseEngines
from ssd.bench.records import PromptRecord
from ssd.config import MAX_LOOKAHEAD, Precision, RunnerConfig
from ssd.models.linear import resolve_precision
from ssd.planning.times import Forward, PairTimes, line_through
from ssd.runtime.host import resolve_device, resolve_dtype
from ssd.runtime.loading import LoadedModel
from ssd.sampling import SamplingParams, mix_seed
from ssd.tuning.texts import Guesses, Written, guesses_of

TARGET_ROWS = (1, 5, 9, MAX_LOOKAHEAD + 1)
DRAFT_ROWS = (1, 4, 12, 32)
_TURNS, _BESIDE_TURNS = 5, 3
_SPREADS = 0.98
"""Largest ratio of times at which further cores are used for the target."""
_PROBE = 2
"""Number of prompts of the short run that measures contention."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """Measurements of a draft in one precision."""

    seconds: Mapping[int, float]
    """Seconds of bare forwards, by rows."""
    guesses: Guesses
    """Its guesses for the texts of the tuning prompts."""
    target_beside: float
    draft_beside: float
    in_turns: float | None = None
    """Seconds of a forward of one row on the target's cores, as in mode sd; None: as `seconds`."""


@dataclass(frozen=True, slots=True)
class Facts:
    target_seconds: Mapping[int, float]
    drafts: Mapping[Precision, DraftFacts]
    spread: float = 1.0
    """Time of a target's forward on all cores, as a multiple of the time on the target's own."""

    @property
    def spreads(self) -> bool:
        """Whether modes whose draft needs no cores of its own are faster with all cores."""
        return self.spread < _SPREADS

    @property
    def target(self) -> Forward:
        first, last = min(self.target_seconds), max(self.target_seconds)
        return line_through(first, self.target_seconds[first], last, self.target_seconds[last])

    def times(self, precision: Precision) -> PairTimes:
        draft = self.drafts[precision]
        first, last = min(draft.seconds), max(draft.seconds)
        forward = line_through(first, draft.seconds[first], last, draft.seconds[last])
        return PairTimes(
            self.target, forward, target_beside=draft.target_beside, draft_beside=draft.draft_beside
        )


def measure(
    engines: CaseEngines, prompts: Sequence[str], *, max_tokens: int, temperature: float, seed: int, say: Say
) -> Facts:
    say("writing texts with the target alone")
    written = [
        _written(engines, prompt, max_tokens, temperature, seed + index)
        for index, prompt in enumerate(prompts)
    ]
    say("measuring bare forwards and the draft's guesses")
    drafts = {
        precision: load_bare_draft(engines.config_of(Case(mode="ssd", draft_precision=precision)))
        for precision in precisions_of(engines.config_of(Case(mode="ssd")).draft_runner)
    }
    bare = _bare_forwards(engines, drafts)
    spread = _spread(engines)
    guesses = {precision: guesses_of(draft, written) for precision, draft in drafts.items()}
    facts: dict[Precision, DraftFacts] = {}
    for precision in guesses:
        say(f"measuring how target and draft ({precision}) slow each other")
        probe = _Probe(engines, precision, drafts.pop(precision))
        target, draft = probe.beside(
            prompts[:_PROBE], max_tokens=max_tokens, temperature=temperature, seed=seed
        )
        seconds, in_turns = bare.drafts[precision], bare.in_turns.get(precision)
        facts[precision] = DraftFacts(seconds, guesses[precision], target, draft, in_turns)
    engines.close()
    return Facts(bare.target, facts, spread)


def precisions_of(draft: RunnerConfig) -> tuple[Precision, ...]:
    """The precisions that the draft's device supports: the model's number format, and int8 if available."""
    device = resolve_device(draft.device)
    best = resolve_precision("auto", device, resolve_dtype(draft.dtype, device))
    return ("model",) if best == "model" else ("model", best)


def _written(engines: CaseEngines, prompt: str, max_tokens: int, temperature: float, seed: int) -> Written:
    case = Case(mode="ar", temperature=temperature)
    (record,) = engines.run(case, [prompt], max_tokens=max_tokens, seed=seed)
    ids = engines.engine.requests.tokenizer(prompt).input_ids[-record.num_prompt :]
    params = SamplingParams(temperature=temperature, seed=seed)
    return Written(ids, record.tokens, params, mix_seed(seed, 0))


@dataclass(frozen=True, slots=True)
class _BareTimes:
    """Median seconds over a few turns, by rows."""

    target: Mapping[int, float]
    drafts: Mapping[Precision, Mapping[int, float]]
    in_turns: Mapping[Precision, float]


def _bare_forwards(engines: CaseEngines, drafts: Mapping[Precision, LoadedModel]) -> _BareTimes:
    target, config = engines.engine.loaded, engines.config
    alone = {rows: BareForward(target, rows, config.cores) for rows in TARGET_ROWS}
    ahead = {
        name: {rows: BareForward(draft, rows, engines.draft_cores or config.cores) for rows in DRAFT_ROWS}
        for name, draft in drafts.items()
    }
    in_turns = {
        name: BareForward(draft, 1, config.cores)
        for name, draft in drafts.items()
        if draft.pool.shape.device == target.pool.shape.device
    }
    # Sorted by cores, so that the process changes cores only twice in a turn.
    wanted = [*alone.values(), *in_turns.values(), *(one for each in ahead.values() for one in each.values())]
    median_seconds(wanted, turns=1, home=config.cores)  # warms up
    seconds = dict(zip(wanted, median_seconds(wanted, turns=_TURNS, home=config.cores), strict=True))
    return _BareTimes(
        {rows: seconds[each] for rows, each in alone.items()},
        {name: {rows: seconds[one] for rows, one in each.items()} for name, each in ahead.items()},
        {name: seconds[each] for name, each in in_turns.items()},
    )


def _spread(engines: CaseEngines) -> float:
    own, drafts, target = engines.config.cores, engines.draft_cores, engines.engine.loaded
    if not drafts:
        return 1.0
    both = [BareForward(target, 9, own), BareForward(target, 9, (*own, *drafts))]
    alone, together = median_seconds(both, turns=_TURNS, home=own)
    return together / alone


@dataclass(frozen=True, slots=True)
class _Probe:
    """A short run of SSD, with bare forwards before and after each text."""

    engines: CaseEngines
    precision: Precision
    draft: LoadedModel

    def beside(
        self, prompts: Sequence[str], *, max_tokens: int, temperature: float, seed: int
    ) -> tuple[float, float]:
        case = Case(mode="ssd", draft_precision=self.precision, temperature=temperature)
        self.engines.warm_up([case], prompts[0])
        records, bare = [], [self._bare()]
        for index, prompt in enumerate(prompts):
            records += self.engines.run(case, [prompt], max_tokens=max_tokens, seed=seed + index)
            bare.append(self._bare())
        target, draft = (statistics.median(times) for times in zip(*bare, strict=True))
        return contention(records, target=target, draft=draft)

    def _bare(self) -> list[float]:
        """Seconds of bare forwards of target and draft at this moment, to separate drift from contention."""
        config = self.engines.config
        forwards = [
            BareForward(self.engines.engine.loaded, 9, config.cores),
            BareForward(self.draft, 12, self.engines.draft_cores or config.cores),
        ]
        return median_seconds(forwards, turns=_BESIDE_TURNS, home=config.cores)


def contention(records: Sequence[PromptRecord], *, target: float, draft: float) -> tuple[float, float]:
    """Times of forwards in a run as multiples of bare ones; at least 1, since less can only be noise."""
    verify = _mean(records, "round_seconds", "round_steps") or target
    # Includes the few steps in which the draft reads prompts.
    step = _mean(records, "draft_seconds", "draft_steps") or draft
    return max(1.0, verify / target), max(1.0, step / draft)


def _mean(records: Sequence[PromptRecord], seconds: str, steps: str) -> float | None:
    count = sum(getattr(each, steps) for each in records)
    return sum(getattr(each, seconds) for each in records) / count if count else None
