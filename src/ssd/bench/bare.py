"""Measures bare forwards of target and drafts, and how often a draft agrees: the inputs of the roof.

The roof (roof.py) needs T_v and T_d. Both are measured within the run, on the cores that the engine uses
(bare_forward.py), after every turn of a case: if the machine's speed varies, forwards and texts are affected
alike. A draft's forward of one row, as in mode sd, is measured on the target's cores; a forward of a draft
step's width on the draft's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Self

from ssd.attention.inputs import PlainInput
from ssd.bench.bare_forward import BareForward, load_bare_draft, median_seconds
from ssd.bench.cases import Case
from ssd.bench.engines import CaseEngines
from ssd.bench.records import Forwards
from ssd.config import MAX_CHILDREN, MAX_LOOKAHEAD, DraftConfig, EngineConfig, Precision
from ssd.ngram import right_guesses
from ssd.runtime.loading import LoadedModel
from ssd.runtime.runner import forward

_LEAST_SAMPLES = 3
_IN_TURNS = 1
"""Rows of a draft's forward in mode sd."""
MISSED = -1
"""The rank of a token that was not among the draft's guesses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftForm:
    """The settings of a case that determine its draft's forward time and guesses."""

    precision: Precision
    head: int | None

    @classmethod
    def of(cls, draft: DraftConfig) -> Self:
        return cls(precision=draft.precision, head=draft.head)

    @property
    def name(self) -> str:
        return self.precision if self.head is None else f"{self.precision}, head of {self.head}"


class BareModels:
    """The run's target, and a copy of each draft that only computes forwards."""

    def __init__(self, engines: CaseEngines, cases: Sequence[Case]) -> None:
        self._engines = engines
        by_form: dict[DraftForm, list[EngineConfig]] = {}
        for config in map(engines.config_of, cases):
            if config.draft is not None:
                by_form.setdefault(DraftForm.of(config.draft), []).append(config)
        rows = (each.max_lookahead + 1 for configs in by_form.values() for each in configs)
        self._target_rows = sorted({1, *rows})
        self._drafts = {form: _load(configs) for form, configs in by_form.items()}
        self._draft_forwards = {
            form: self._forwards_of(draft, by_form[form]) for form, draft in self._drafts.items()
        }
        target, cores = engines.engine.loaded, engines.config.cores
        self._wanted = [BareForward(target, rows, cores) for rows in self._target_rows]
        self._wanted += [each for forwards in self._draft_forwards.values() for each in forwards]

    def sample(self) -> list[float]:
        """Measures the seconds of each forward once."""
        return median_seconds(self._wanted, turns=1, home=self._engines.config.cores)

    def forwards(self, dataset: str, prompt: int, samples: Sequence[Sequence[float]] = ()) -> Forwards:
        """Means of the samples taken beside a prompt; takes more samples if these are too few.

        Means, not medians, because a text's time is also a sum over its forwards.
        """
        taken = [*samples, *(self.sample() for _ in range(_LEAST_SAMPLES - len(samples)))]
        seconds = dict(zip(self._wanted, map(fmean, zip(*taken, strict=True)), strict=True))
        return Forwards(
            dataset=dataset,
            prompt=prompt,
            target_seconds={each.rows: seconds[each] for each in self._wanted[: len(self._target_rows)]},
            draft_seconds={
                form.name: {each.rows: seconds[each] for each in forwards}
                for form, forwards in self._draft_forwards.items()
            },
            agreement={},
        )

    def with_agreement(self, forwards: Forwards, prompt: str, tokens: Sequence[int]) -> Forwards:
        """`tokens`: the target's greedy continuation of the prompt."""
        before = self._engines.engine.requests.tokenizer(prompt).input_ids
        ranks = {
            form.name: _ranks(each, [*before, *tokens], len(tokens))
            for form, each in self._drafts.items()
            if len(before) + len(tokens) <= each.max_model_len
        }
        return replace(
            forwards,
            agreement={name: [rank == 0 for rank in each] for name, each in ranks.items()},
            ranks=ranks,
            runs=right_guesses(before, tokens, MAX_LOOKAHEAD),
        )

    def _forwards_of(self, draft: LoadedModel, configs: Sequence[EngineConfig]) -> list[BareForward]:
        config, target = self._engines.config, self._engines.engine.loaded
        widths = sorted({each.draft.width for each in configs if each.draft and each.mode == "ssd"})
        forwards = [BareForward(draft, width, self._engines.draft_cores or config.cores) for width in widths]
        is_with_target = draft.pool.shape.device == target.pool.shape.device
        if is_with_target and _IN_TURNS not in widths and any(each.mode == "sd" for each in configs):
            forwards.insert(0, BareForward(draft, _IN_TURNS, config.cores))
        return forwards


def _load(configs: Sequence[EngineConfig]) -> LoadedModel:
    """Loads the draft on the device of mode ssd, if a case has that mode; else on the target's."""
    return load_bare_draft(next((each for each in configs if each.mode == "ssd"), configs[0]))


def _ranks(draft: LoadedModel, ids: Sequence[int], count: int) -> list[int]:
    """For each of the last `count` tokens, its rank among the draft's likeliest few, or MISSED."""
    blocks = list(range(-(-len(ids) // draft.pool.shape.block_size)))
    logits = forward(draft.runner, [PlainInput(ids[:-1], 0, blocks, count, generated=False)])
    guesses = logits.topk(MAX_CHILDREN).indices
    if draft.head_tokens is not None:
        guesses = draft.head_tokens[guesses]
    pairs = zip(guesses.tolist(), ids[-count:], strict=True)
    return [likeliest.index(token) if token in likeliest else MISSED for likeliest, token in pairs]
