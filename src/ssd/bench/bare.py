"""Bare forwards of target and drafts, and how often a draft agrees: what bounds the speed from above.

A draft that always had a whole speculation ready would give E∞ tokens a verification; a draft that works
ahead cannot give more than one token a step of its own (runs aside, see docs/ssd.md). So the roof is
min(E∞ / T_v, 1 / T_d), with both times measured within the run, in turns, like everything else.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from ssd.bench.cases import Case
from ssd.bench.engines import CaseEngines
from ssd.bench.records import Forwards
from ssd.config import EngineConfig
from ssd.runtime.loading import LoadedModel, load_draft
from ssd.runtime.runner import RunnerRow

_TURNS = 3
_CONTEXT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftForm:
    """What of a case decides the time of its draft's forward and its guesses."""

    precision: str
    head: int | None

    @classmethod
    def of(cls, config: EngineConfig) -> Self:
        return cls(precision=config.draft_precision, head=config.draft_head)

    @property
    def name(self) -> str:
        return self.precision if self.head is None else f"{self.precision}, head of {self.head}"


class BareModels:
    """The run's target, and of each draft a copy that only computes forwards."""

    def __init__(self, engines: CaseEngines, cases: Sequence[Case]) -> None:
        self._engines = engines
        configs = [engines.config_of(case) for case in cases if case.mode != "ar"]
        self._target_rows = sorted({1, *(each.max_lookahead + 1 for each in configs)})
        self._draft_rows = {
            form: sorted({each.draft_width for each in configs if DraftForm.of(each) == form})
            for form in {DraftForm.of(each): None for each in configs}
        }
        self._drafts = {form: self._load(form) for form in self._draft_rows}

    def measure(self, dataset: str, prompt: int) -> Forwards:
        target, times = self._engines.engine.loaded, defaultdict[tuple[str, int], list[float]](list)
        wanted = [("", target, rows) for rows in self._target_rows]
        for form, each in self._draft_rows.items():
            wanted += [(form.name, self._drafts[form], rows) for rows in each]
        for _ in range(_TURNS):
            for name, loaded, rows in wanted:
                times[name, rows].append(_seconds(loaded, rows))
        medians = {key: statistics.median(each) for key, each in times.items()}
        return Forwards(
            dataset=dataset,
            prompt=prompt,
            target_seconds={rows: medians["", rows] for rows in self._target_rows},
            draft_seconds={
                form.name: {rows: medians[form.name, rows] for rows in each}
                for form, each in self._draft_rows.items()
            },
            agreement={},
        )

    def with_agreement(self, forwards: Forwards, prompt: str, tokens: Sequence[int]) -> Forwards:
        """`tokens`: what the target writes after the prompt, greedily."""
        ids = [*self._engines.engine.requests.tokenizer(prompt).input_ids, *tokens]
        agreement = {
            form.name: _agrees(each, ids, tokens)
            for form, each in self._drafts.items()
            if len(ids) <= each.max_model_len
        }
        return replace(forwards, agreement=agreement)

    def _load(self, form: DraftForm) -> LoadedModel:
        config = replace(
            self._engines.config, model=str(self._engines.draft), deterministic=False, max_model_len=None,
            max_num_seqs=1,
        )  # fmt: skip
        return load_draft(config, precision="int8" if form.precision == "int8" else "model", head=form.head)


def _seconds(loaded: LoadedModel, rows: int) -> float:
    """Of a forward of so many rows after a context, whose content does not matter here."""
    context = min(_CONTEXT, loaded.max_model_len - rows)
    blocks = list(range(-(-(context + rows) // loaded.pool.shape.block_size)))
    started = time.perf_counter()
    # Reading the answer waits for a device that computes by itself.
    loaded.runner.forward([RunnerRow([1] * rows, context, blocks, rows, generated=True)])[0, 0].item()
    return time.perf_counter() - started


def _agrees(draft: LoadedModel, ids: Sequence[int], tokens: Sequence[int]) -> list[bool]:
    blocks = list(range(-(-len(ids) // draft.pool.shape.block_size)))
    rows = [RunnerRow(ids[:-1], 0, blocks, len(tokens), generated=False)]
    guesses = draft.runner.forward(rows).argmax(-1)
    if draft.head_tokens is not None:
        guesses = draft.head_tokens[guesses]
    return [guess == token for guess, token in zip(guesses.tolist(), tokens, strict=True)]
