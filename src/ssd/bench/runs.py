"""A benchmark run: every case on every prompt, in turns. Results are saved at once: a run can be resumed.

Knows the order of turns and what is still to do. Does not know terminals: it calls a function after each
turn. A batch of prompts runs in every case before the next one starts, and the order changes with each batch
(`in_turn`), so that a drift of the machine affects all cases alike. A batch that was interrupted is measured
again as a whole: all cases of a prompt are measured in one session.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from ssd.attention.inputs import PlainInput
from ssd.bench.bare import BareModels, DraftForm
from ssd.bench.cases import Case, parse_case
from ssd.bench.datasets import digest_of
from ssd.bench.engines import CaseEngines
from ssd.bench.equality import check_equality
from ssd.bench.folder import RunFolder
from ssd.bench.manifest import CaseFacts, Manifest, ModelFacts
from ssd.bench.records import CaseRecord, PromptRecord, Tie
from ssd.bench.statistics import in_turn
from ssd.models.checkpoint import Checkpoint, open_checkpoint
from ssd.runtime.runner import forward
from ssd.sampling import gumbel_noise_at

Prompts = Mapping[str, Sequence[str]]
"""By data set."""


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """Prompts that run together, and the cases in the order of their turns."""

    dataset: str
    start: int
    """Index of its first prompt among those of the run, not of the data set."""
    size: int
    cases: Sequence[Case]


OnTurn = Callable[[Case, Sequence[CaseRecord]], None]
"""Called after each turn, with its case and records."""


def batches(cases: Sequence[Case], datasets: Sequence[str], num_prompts: int) -> list[PromptBatch]:
    """All batches of a run, in order. Data sets take turns too. A batch that is not full is left out."""
    by_size: dict[int, list[Case]] = {}
    for case in cases:
        by_size.setdefault(case.batch_size, []).append(case)
    too_large = max(by_size)
    if too_large > num_prompts:
        raise ValueError(f"batches of {too_large} need as many prompts, not {num_prompts}: --num-prompts")
    ordered: list[PromptBatch] = []
    for start in range(num_prompts):
        for index, dataset in enumerate(datasets):
            for size, sharing in by_size.items():
                if start % size == 0 and start + size <= num_prompts:
                    order = in_turn(sharing, start // size + index)
                    ordered.append(PromptBatch(dataset, start, size, order))
    return ordered


def digests(prompts: Prompts) -> dict[str, str]:
    return {name: digest_of(texts) for name, texts in prompts.items()}


class BenchRun:
    def __init__(
        self,
        folder: RunFolder,
        manifest: Manifest,
        cases: Sequence[Case],
        prompts: Prompts,
        *,
        mixed: bool = False,
    ) -> None:
        """Begins or resumes a run; loads no model. `mixed`: resume with other code or elsewhere too."""
        self._folder, self._manifest, self._cases, self._prompts = folder, manifest, cases, prompts
        settings = manifest.settings
        self._batches = batches(cases, list(prompts), settings.num_prompts)
        folder.begin(manifest)
        self._done = {(each.dataset, each.prompt, each.case): each for each in folder.records()}
        self._measured = {(each.dataset, each.prompt) for each in folder.forwards()}
        if self._done and not self.is_complete and not mixed:
            folder.refuse_elsewhere(manifest.sessions[-1])

    @property
    def num_texts(self) -> int:
        return _num_texts(self._batches)

    @property
    def num_done(self) -> int:
        """Texts that need not be measured again."""
        return _num_texts([batch for batch in self._batches if self._is_whole(batch)])

    @property
    def is_complete(self) -> bool:
        return all(map(self._is_whole, self._batches))

    def go_on(self, engines: CaseEngines, on_turn: OnTurn) -> None:
        """Measures all that is left. `engines`: those of the run's cases."""
        engines.refuse_long(chain.from_iterable(self._prompts.values()), self._manifest.settings.max_tokens)
        bare = BareModels(engines, self._cases)
        self._folder.begin_session(self._with_facts(engines))
        engines.warm_up(self._cases, next(iter(self._prompts.values()))[0])
        bare.sample()  # Discarded: warms up.
        for batch in self._batches:
            samples: list[list[float]] = []
            if not self._is_whole(batch):
                for case in batch.cases:
                    on_turn(case, self._take_turn(engines, batch, case))
                    if not self._has_forwards(batch):
                        samples.append(bare.sample())
            if not self._has_forwards(batch):
                self._add_forwards(bare, batch, samples)
        self._add_ties(engines)

    def _take_turn(self, engines: CaseEngines, batch: PromptBatch, case: Case) -> list[CaseRecord]:
        settings = self._manifest.settings
        first = settings.first_prompt + batch.start
        texts = self._prompts[batch.dataset][batch.start : batch.start + batch.size]
        results = engines.run(
            case,
            texts,
            max_tokens=settings.max_tokens,
            seed=settings.seed + first,
        )
        records = [_case_record(each, batch.dataset, first + i, case) for i, each in enumerate(results)]
        self._folder.add(records)
        self._done |= {(each.dataset, each.prompt, each.case): each for each in records}
        return records

    def _has_forwards(self, batch: PromptBatch) -> bool:
        return (batch.dataset, self._manifest.settings.first_prompt + batch.start) in self._measured

    def _add_forwards(self, bare: BareModels, batch: PromptBatch, samples: Sequence[Sequence[float]]) -> None:
        """Records the bare forwards sampled between turns, and the draft's agreement if a case is greedy."""
        place = self._manifest.settings.first_prompt + batch.start
        forwards = bare.forwards(batch.dataset, place, samples)
        greedy = [case for case in batch.cases if case.temperature == 0]
        if greedy:
            tokens = self._done[batch.dataset, place, greedy[0].label].tokens
            forwards = bare.with_agreement(forwards, self._prompts[batch.dataset][batch.start], tokens)
        self._folder.add([forwards])
        self._measured.add((batch.dataset, place))

    def _add_ties(self, engines: CaseEngines) -> None:
        """Records how close the scores were where two texts first differ. All texts have the same length."""
        settings, equality = self._manifest.settings, check_equality(self._done.values())
        for each in equality.differences:
            one, other = (
                self._done[each.dataset, each.prompt, case].tokens for case in (each.case, each.reference)
            )
            gap = _gap(
                engines,
                self._prompts[each.dataset][each.prompt - settings.first_prompt],
                one[: each.place],
                (one[each.place], other[each.place]),
                t=parse_case(each.case).temperature,
                seed=settings.seed + each.prompt,
            )
            where = {name: getattr(each, name) for name in Tie.__dataclass_fields__ if name != "gap"}
            self._folder.add([Tie(gap=gap, **where)])

    def _is_whole(self, batch: PromptBatch) -> bool:
        first = self._manifest.settings.first_prompt + batch.start
        return all(
            (batch.dataset, first + place, case.label) in self._done
            for case in batch.cases
            for place in range(batch.size)
        )

    def _with_facts(self, engines: CaseEngines) -> Manifest:
        draft = None if engines.draft is None else open_checkpoint(engines.draft.model)
        device = engines.engine.loaded.pool.shape.device
        return Manifest(
            settings=self._manifest.settings,
            sessions=self._manifest.sessions,
            target=model_facts(engines.engine.loaded.checkpoint),
            draft=None if draft is None else model_facts(draft),
            cases=[_case_facts(case, engines, draft) for case in self._cases],
            kind_of_device="core" if device.type == "cpu" else "GPU",
        )


def _num_texts(listed: Sequence[PromptBatch]) -> int:
    return sum(batch.size * len(batch.cases) for batch in listed)


def model_facts(checkpoint: Checkpoint) -> ModelFacts:
    path = checkpoint.path
    files = [path] if path.is_file() else [each for each in path.iterdir() if each.suffix == ".safetensors"]
    return ModelFacts(
        name=checkpoint.name,
        path=str(Path(path).resolve()),
        num_bytes=sum(each.stat().st_size for each in files),
        num_parameters=checkpoint.config.num_parameters,
    )


def _case_facts(case: Case, engines: CaseEngines, draft: Checkpoint | None) -> CaseFacts:
    config = engines.config_of(case)
    parameters = 0
    if draft is not None and config.draft is not None:
        left_out = draft.config.vocab_size - (config.draft.head or draft.config.vocab_size)
        parameters = draft.config.num_parameters - left_out * draft.config.hidden_size
    return CaseFacts(
        label=case.label,
        lookahead=config.max_lookahead if config.draft else 0,
        draft_form=DraftForm.of(config.draft).name if config.draft else None,
        draft_width=config.draft.width if config.draft else 0,
        draft_parameters=parameters,
        num_devices=engines.num_devices(case),
        draft_guesses=config.draft.children if config.draft and config.may_have_trees else 1,
        draft_lookup=config.draft.lookup if config.draft else 0,
    )


def _gap(
    engines: CaseEngines, prompt: str, shared: Sequence[int], tokens: Sequence[int], *, t: float, seed: int
) -> float:
    """The difference of the scores of two tokens after the prompt and the `shared` text, in logits.

    A score is what sampling compares: a token's logit, and at T > 0 the noise times T.
    """
    loaded = engines.engine.loaded
    ids = [*engines.engine.requests.tokenizer(prompt).input_ids, *shared]
    blocks = list(range(-(-len(ids) // loaded.pool.shape.block_size)))
    logits = forward(loaded.runner, [PlainInput(ids, 0, blocks, 1, generated=False)])[0]
    scores = logits[torch.tensor(tokens, device=logits.device)].cpu()
    if t > 0:
        scores = scores + t * gumbel_noise_at(seed, len(ids), torch.tensor(tokens))
    return abs(float(scores[0] - scores[1]))


def _case_record(record: PromptRecord, dataset: str, prompt: int, case: Case) -> CaseRecord:
    fields = {name: getattr(record, name) for name in PromptRecord.__dataclass_fields__}
    return CaseRecord(dataset=dataset, prompt=prompt, case=case.label, **fields)
