"""What the round model needs to know of this machine: bare forwards by rows, and how models slow each other.

Bare forwards take turns, so that drift hits all alike. How much longer forwards take while target and draft
compute at the same time is read off a short real run of SSD: they share memory, and nothing bare shows that.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ssd.bench.cases import Case
from ssd.bench.engines import CaseEngines
from ssd.bench.records import PromptRecord
from ssd.config import MAX_LOOKAHEAD, Precision
from ssd.planning.text import Text
from ssd.planning.times import Forward, PairTimes, line_through
from ssd.runtime.host import move_to_cores
from ssd.runtime.loading import LoadedModel, load_draft
from ssd.runtime.runner import RunnerRow
from ssd.sampling import SamplingParams, mix_seed
from ssd.tuning.texts import Written, texts_of

PRECISIONS: tuple[Precision, ...] = ("model", "int8")
TARGET_ROWS = (1, 5, 9, MAX_LOOKAHEAD + 1)
DRAFT_ROWS = (1, 4, 12, 32)
_TURNS = 5
_CONTEXT = 256
_SPREADS = 0.98
"""More cores must save at least this much."""
_PROBE = 2
"""Prompts of the short run that shows contention."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """Of one draft, in one precision."""

    seconds: Mapping[int, float]
    """Bare forwards, by rows."""
    texts: Sequence[Text]
    """The tuning prompts, as this draft guesses at them."""
    target_beside: float
    draft_beside: float


@dataclass(frozen=True, slots=True)
class Facts:
    target_seconds: Mapping[int, float]
    drafts: Mapping[Precision, DraftFacts]
    spread: float = 1.0
    """A forward on the draft's cores as well, as a multiple of one on the target's own."""

    @property
    def spreads(self) -> bool:
        """Whether modes whose draft needs no cores of its own are better off with all of them."""
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
        _written(engines, prompt, max_tokens, temperature, seed + place)
        for place, prompt in enumerate(prompts)
    ]
    say("bare forwards, and what the draft would have guessed")
    drafts = {precision: _load(engines, precision) for precision in PRECISIONS}
    target_seconds, draft_seconds = _bare_forwards(engines.engine.loaded, drafts)
    spread = _spread(engines)
    texts = {precision: texts_of(draft, written) for precision, draft in drafts.items()}
    del drafts
    facts: dict[Precision, DraftFacts] = {}
    for precision in PRECISIONS:
        say(f"how target and draft ({precision}) slow each other")
        records = _probe(engines, precision, prompts[:_PROBE], max_tokens, temperature, seed)
        beside = _beside(records, target_seconds, draft_seconds[precision])
        facts[precision] = DraftFacts(draft_seconds[precision], texts[precision], *beside)
    engines.close()
    return Facts(target_seconds, facts, spread)


def _written(engines: CaseEngines, prompt: str, max_tokens: int, temperature: float, seed: int) -> Written:
    case = Case(mode="ar", temperature=temperature)
    (record,) = engines.run(case, [prompt], max_tokens=max_tokens, seed=seed)
    ids = engines.engine.requests.tokenizer(prompt).input_ids[-record.num_prompt :]
    params = SamplingParams(temperature=temperature, seed=seed)
    return Written(ids, record.tokens, params, mix_seed(seed, 0))


def _load(engines: CaseEngines, precision: Precision) -> LoadedModel:
    config = engines.config
    device = config.device if config.draft_device == "auto" else config.draft_device
    config = replace(
        config,
        model=str(engines.draft),
        device=device,
        deterministic=False,
        max_model_len=None,
        max_num_seqs=1,
    )
    return load_draft(config, precision=precision, head=config.draft_head)


def _bare_forwards(
    target: LoadedModel, drafts: Mapping[Precision, LoadedModel]
) -> tuple[dict[int, float], dict[Precision, dict[int, float]]]:
    """Medians over a few turns."""
    wanted = [("", target, rows) for rows in TARGET_ROWS]
    wanted += [(name, draft, rows) for name, draft in drafts.items() for rows in DRAFT_ROWS]
    found = defaultdict[tuple[str, int], list[float]](list)
    for turn in range(_TURNS + 1):
        for name, loaded, rows in wanted:
            seconds = bare_forward(loaded, rows)
            if turn:  # the first one warms up
                found[name, rows].append(seconds)
    middle = {key: statistics.median(each) for key, each in found.items()}
    return (
        {rows: middle["", rows] for rows in TARGET_ROWS},
        {name: {rows: middle[name, rows] for rows in DRAFT_ROWS} for name in drafts},
    )


def _spread(engines: CaseEngines) -> float:
    own, drafts, target = engines.config.cores, engines.config.draft_cores, engines.engine.loaded
    if not drafts:
        return 1.0
    ratios: list[float] = []
    try:
        for _ in range(_TURNS):
            alone = bare_forward(target, 9)
            move_to_cores((*own, *drafts))
            bare_forward(target, 1)
            ratios.append(bare_forward(target, 9) / alone)
            move_to_cores(own)
    finally:
        move_to_cores(own)
    return statistics.median(ratios)


def bare_forward(loaded: LoadedModel, rows: int) -> float:
    """Seconds of a forward of so many rows after a context, whose content does not matter here."""
    context = max(1, min(_CONTEXT, loaded.max_model_len - rows))
    blocks = list(range(-(-(context + rows) // loaded.pool.shape.block_size)))
    started = time.perf_counter()
    loaded.runner.forward([RunnerRow([1] * rows, context, blocks, rows, generated=True)])[0, 0].item()
    return time.perf_counter() - started


def _probe(
    engines: CaseEngines,
    precision: Precision,
    prompts: Sequence[str],
    max_tokens: int,
    temperature: float,
    seed: int,
) -> list[PromptRecord]:
    case = Case(mode="ssd", draft_precision=precision, temperature=temperature)
    engines.warm_up([case], prompts[0])
    return [
        engines.run(case, [prompt], max_tokens=max_tokens, seed=seed + place)[0]
        for place, prompt in enumerate(prompts)
    ]


def _beside(
    records: Sequence[PromptRecord], target: Mapping[int, float], draft: Mapping[int, float]
) -> tuple[float, float]:
    """In the run, as multiples of the bare forwards; not less than 1, which only noise would give."""
    verify = sum(each.verify_seconds for each in records) / sum(each.rounds for each in records)
    steps = sum(each.draft_steps for each in records)
    # Prompts are in it too: the draft reads them in chunks, a few steps that do not weigh much.
    step = sum(each.draft_seconds for each in records) / steps if steps else draft[12]
    return max(1.0, verify / target[9]), max(1.0, step / draft[12])
