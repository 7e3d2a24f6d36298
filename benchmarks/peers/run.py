"""A run among peers: every case of everyone on every prompt, in turns, each text kept as it is made.

Knows the order of turns and what is still to do. The order changes with each prompt: whatever drifts
on the machine, drifts for all. A prompt that somebody could not answer is measured by everyone again when the
run goes on: nobody is compared with what another engine did on another day. A peer that fails is left out of
the rest of its wave, and why is kept.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.peers.cases import has_our_draft
from benchmarks.peers.idle import idle_cores
from benchmarks.peers.process import PeerError, Worker, WorkerPlan
from benchmarks.peers.records import PeerRecord, PeersFolder, PeersManifest
from benchmarks.peers.registry import SSD
from ssd.bench.manifest import Provenance, places_apart
from ssd.bench.statistics import in_turn

_WARM_UP_TOKENS = 8
TokenPrompts = Mapping[str, Sequence[Sequence[int]]]
"""By data set, prompts as token ids: everyone reads exactly the same."""

Place = tuple[int, str, int, int]
"""Wave, data set, which of its prompts, and which turn of it."""
Engine = tuple[str, str]
"""A peer and its case."""


@dataclass(frozen=True, slots=True)
class Turn:
    worker: str
    peer: str
    case: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Who is told how it goes."""

    on_text: Callable[[PeerRecord], None]
    on_note: Callable[[str], None]


def turns_of(wave: Sequence[WorkerPlan], place: int) -> list[Turn]:
    """Everyone's cases, in another order for each prompt."""
    turns = [Turn(plan.name, plan.peer.name, case) for plan in wave for case in plan.cases]
    return in_turn(turns, place)


class PeersRun:
    def __init__(
        self,
        folder: PeersFolder,
        manifest: PeersManifest,
        waves: Sequence[Sequence[WorkerPlan]],
        prompts: TokenPrompts,
        encode: Callable[[str], list[int]],
    ) -> None:
        """`encode` makes tokens of a text, for servers that answer with text alone."""
        self._folder, self._manifest, self._waves = folder, manifest, waves
        self._prompts, self._encode = prompts, encode
        records = folder.records()
        self._sitting = 1 + max((each.sitting for each in records), default=-1)
        self._done = defaultdict[Place, dict[int, set[Engine]]](dict)
        for each in records:
            self._note_done(each)

    @property
    def num_texts(self) -> int:
        return sum(len(turns_of(wave, 0)) * len(self._places) for wave in self._waves)

    @property
    def num_done(self) -> int:
        """Texts of the prompts that need not be measured again."""
        left = sum(
            len(turns_of(wave, 0)) * self._num_left(index, wave) for index, wave in enumerate(self._waves)
        )
        return self.num_texts - left

    @property
    def is_complete(self) -> bool:
        return self.num_done == self.num_texts

    def begin_session(self, now: Provenance, *, mixed: bool) -> None:
        """Texts of other code, or of another machine, must not be added to those that are there."""
        before = self._manifest.sessions
        apart = places_apart(before[-1], now) if before and self._done and not mixed else []
        if apart:
            raise ValueError(
                f"since {self._folder.path} was begun, things changed: {'; '.join(apart)}. "
                "Name another folder with --run, or continue anyway with --mixed"
            )
        self._keep(replace(self._manifest, sessions=[*before, now]))

    def go_on(self, watcher: Watcher) -> None:
        for index, wave in enumerate(self._waves):
            if self._num_left(index, wave):
                self._run_wave(index, wave, watcher)

    @property
    def _places(self) -> list[tuple[str, int, int]]:
        """Data sets take turns too, and all of it comes again in the next turn."""
        longest = max(len(prompts) for prompts in self._prompts.values())
        return [
            (name, i, turn)
            for turn in range(self._manifest.settings.turns)
            for i in range(longest)
            for name, all_of in self._prompts.items()
            if i < len(all_of)
        ]

    def _num_left(self, index: int, wave: Sequence[WorkerPlan]) -> int:
        """Prompts that are not whole, whoever of the wave will be there."""
        turns = turns_of(wave, 0)
        return sum(not self._is_whole((index, *place), turns) for place in self._places)

    def _is_whole(self, place: Place, turns: Sequence[Turn]) -> bool:
        """Whether each of them has answered in a sitting in which this engine did, in all its cases.

        Where it takes no part, others with our draft inside them stand for it, or else everyone.
        """
        everyone = {(turn.peer, turn.case) for turn in turns}
        ours = {engine for engine in everyone if engine[0] == SSD}
        ours = ours or {engine for engine in everyone if has_our_draft(engine[1])} or everyone
        sittings = self._done[place].values()
        return all(any(ours | {(turn.peer, turn.case)} <= done for done in sittings) for turn in turns)

    def _note_done(self, record: PeerRecord) -> None:
        prompt = record.prompt - self._manifest.settings.first_prompt
        place = (record.wave, record.dataset, prompt, record.turn)
        self._done[place].setdefault(record.sitting, set()).add((record.peer, record.case))

    def _run_wave(self, index: int, wave: Sequence[WorkerPlan], watcher: Watcher) -> None:
        with ExitStack() as stack:
            workers = self._start(wave, stack, watcher)
            self._note_idle(workers, watcher)
            for dataset, prompt, again in self._places:
                # Counted so that each data set, and each text, too, has all orders in turn.
                first = prompt + list(self._prompts).index(dataset) + again
                turns = [turn for turn in turns_of(wave, first) if turn.worker in workers]
                if not self._is_whole((index, dataset, prompt, again), turns):
                    self._run_prompt((index, dataset, prompt, again), turns, workers, watcher)

    def _run_prompt(
        self, place: Place, turns: Sequence[Turn], workers: dict[str, Worker], watcher: Watcher
    ) -> None:
        for turn in turns:
            if turn.worker not in workers:
                continue  # It failed in an earlier case.
            try:
                record = self._measure(place, turn, workers[turn.worker])
            except PeerError as error:
                workers.pop(turn.worker).close()
                self._leave_out(turn.worker, str(error), watcher)
                continue
            self._folder.add(record)
            self._note_done(record)
            watcher.on_text(record)

    def _start(self, wave: Sequence[WorkerPlan], stack: ExitStack, watcher: Watcher) -> dict[str, Worker]:
        """One after the other, each warmed up outside the clock."""
        workers: dict[str, Worker] = {}
        for plan in wave:
            watcher.on_note(f"loading {plan.name}")
            try:
                workers[plan.name] = self._load(plan, stack)
            except PeerError as error:
                if plan.peer.name == SSD:
                    raise ValueError(f"this engine itself did not start: {error}") from error
                self._leave_out(plan.name, str(error), watcher)
        versions = {**self._manifest.versions, **{name: each.versions for name, each in workers.items()}}
        # Whoever is here now is not absent, whatever an earlier session found of it or of one of its cases.
        here = {*workers, *(worker.plan.peer.name for worker in workers.values())}
        absent = {name: why for name, why in self._manifest.absent.items() if name not in here}
        self._keep(replace(self._manifest, versions=versions, absent=absent))
        return workers

    def _load(self, plan: WorkerPlan, stack: ExitStack) -> Worker:
        """One that fails is ended at once: it may be computing still."""
        logs = self._folder.path / "logs"
        logs.mkdir(exist_ok=True)
        worker = Worker(plan, logs / f"{plan.name}.log")
        try:
            stack.enter_context(worker)
            self._refuse_another_version(worker)
            for case in plan.cases:
                worker.ask(case, next(iter(self._prompts.values()))[0], _WARM_UP_TOKENS)
        except PeerError:
            worker.close()
            raise
        return worker

    def _refuse_another_version(self, worker: Worker) -> None:
        """Where texts of an earlier one would be counted with those of this one."""
        plan = worker.plan
        known = self._manifest.versions.get(plan.name, worker.versions)
        engines = {(plan.peer.name, case) for case in plan.cases}
        has_texts = any(engines & done for sittings in self._done.values() for done in sittings.values())
        if has_texts and dict(known) != worker.versions:
            raise PeerError(
                f"its versions are {_words(worker.versions)}, and the run has texts of {_words(known)}: "
                "name another folder with --run"
            )

    def _measure(self, place: Place, turn: Turn, worker: Worker) -> PeerRecord:
        settings, (wave, dataset, prompt, again) = self._manifest.settings, place
        answer = worker.ask(turn.case, self._prompts[dataset][prompt], settings.max_tokens)
        tokens, num_later = self._counted(answer)
        num_tokens = answer.get("num_tokens") or len(tokens)
        if num_tokens < settings.max_tokens:
            raise PeerError(
                f"it ended after {num_tokens} of {settings.max_tokens} tokens, where everyone else goes on: "
                "it must heed ignore_eos, or be asked for fewer with --max-tokens"
            )
        if num_later < 1:
            raise PeerError("all its tokens came at once: nothing to time after the first")
        return PeerRecord(
            wave=wave,
            sitting=self._sitting,
            dataset=dataset,
            prompt=settings.first_prompt + prompt,
            peer=turn.peer,
            case=turn.case,
            tokens=tokens,
            first_token=answer["first_token"],
            seconds_per_token=answer["seconds_later"] / num_later,
            turn=again,
        )

    def _counted(self, answer: Mapping[str, Any]) -> tuple[list[int], int]:
        """Tokens, and how many of them came after the first burst."""
        if answer["tokens"] is not None:
            return answer["tokens"], answer["num_later"]
        tokens = self._encode(answer["text"])
        return tokens, (answer["num_tokens"] or len(tokens)) - len(self._encode(answer["first_text"]))

    def _note_idle(self, workers: Mapping[str, Worker], watcher: Watcher) -> None:
        """Of those that are not stopped while others are measured."""
        awake = {name: each for name, each in workers.items() if not each.plan.is_stopped_while_idle}
        busy = idle_cores({name: worker.pid for name, worker in awake.items()})
        self._keep(replace(self._manifest, idle={**self._manifest.idle, **busy}))
        for name, cores in busy.items():
            if cores > 0.05:
                watcher.on_note(f"{name} keeps {cores:.2f} cores busy while idle: it slows the others")

    def _leave_out(self, name: str, reason: str, watcher: Watcher) -> None:
        watcher.on_note(f"{name} is left out: {reason}")
        self._keep(replace(self._manifest, absent={**self._manifest.absent, name: reason}))

    def _keep(self, manifest: PeersManifest) -> None:
        self._manifest = manifest
        self._folder.write(manifest)


def _words(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
