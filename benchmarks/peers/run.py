"""A run among peers: every case of every engine on every prompt, in turns, each text kept as it is made.

The order changes with each prompt, so that drift of the machine affects all alike. A prompt that an engine
could not answer is measured by all again when the run goes on. An engine that fails is left out of the rest.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peers.figures import Engine, PeerRecord, PeersFigures
from benchmarks.peers.process import PeerError, Worker, WorkerPlan
from benchmarks.peers.registry import SSD
from benchmarks.records import where_and_when
from ssd.bench.statistics import in_turn

_WARM_UP_TOKENS = 8
Settings = Mapping[str, Any]
Prompts = Mapping[str, Sequence[Sequence[int]]]
"""By data set, prompts as token ids: every engine reads exactly the same."""


class PeersRun:
    """In a folder: settings.json, records.jsonl, logs and report.md."""

    def __init__(
        self, folder: Path, settings: Settings, plans: Sequence[WorkerPlan], say: Callable[[str], None]
    ) -> None:
        self._folder, self._settings, self._plans, self._say = folder, settings, plans, say
        self._records_file = folder / "records.jsonl"
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        known = folder / "settings.json"
        if known.exists() and json.loads(known.read_text()) != settings:
            raise ValueError(f"{folder} holds a run with other settings: name another folder with --run")
        known.write_text(json.dumps(settings, indent=1))
        self._done = defaultdict[tuple[str, int, int], set[Engine]](set)
        for each in self.records():
            self._done[each.place].add((each.peer, each.case))
        self._notes = dict[str, str]()
        """By worker: its versions, or why it is left out."""

    def records(self) -> list[PeerRecord]:
        """Without a last line that was cut off when a run was killed."""
        if not self._records_file.exists():
            return []
        text = self._records_file.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._records_file.write_text(whole)
        return [msgspec.json.decode(line, type=PeerRecord) for line in whole.splitlines()]

    def go_on(self, prompts: Prompts) -> None:
        everyone = [(plan, case) for plan in self._plans for case in plan.cases]
        engines = {(plan.peer.name, case) for plan, case in everyone}
        places = [
            (name, number, turn)
            for turn in range(self._settings["turns"])
            for number in range(max(map(len, prompts.values())))
            for name in prompts
            if number < len(prompts[name])
        ]
        left = [place for place in places if not engines <= self._done[place]]
        if not left:
            return
        with ExitStack() as stack:
            workers = self._start(prompts, stack)
            for name, number, turn in left:
                order = in_turn(everyone, number + list(prompts).index(name) + turn)
                for plan, case in order:
                    if worker := workers.get(plan.name):
                        try:
                            self._measure(worker, case, (name, number, turn), prompts[name][number])
                        except PeerError as error:
                            self._leave_out(plan.name, error)
                            del workers[plan.name]

    def _start(self, prompts: Prompts, stack: ExitStack) -> dict[str, Worker]:
        """Each warmed up outside the clock."""
        workers: dict[str, Worker] = {}
        for plan in self._plans:
            self._say(f"loading {plan.name}")
            try:
                worker = Worker(plan, self._folder / "logs" / f"{plan.name}.log")
                stack.callback(worker.close)
                for case in plan.cases:
                    worker.ask(case, next(iter(prompts.values()))[0], _WARM_UP_TOKENS)
            except PeerError as error:
                if plan.peer.name == SSD:
                    raise ValueError(f"this engine itself did not start: {error}") from error
                self._leave_out(plan.name, error)
                continue
            workers[plan.name] = worker
            self._notes[plan.name] = ", ".join(f"{name} {each}" for name, each in worker.versions.items())
        return workers

    def _measure(self, worker: Worker, case: str, place: tuple[str, int, int], prompt: Sequence[int]) -> None:
        wanted = self._settings["max_tokens"]
        answer = worker.ask(case, prompt, wanted)
        if len(answer["tokens"]) < wanted or not answer["num_later"]:
            raise PeerError(f"it gave {len(answer['tokens'])} of {wanted} tokens, or all of them at once")
        dataset, number, turn = place
        record = PeerRecord(
            dataset=dataset,
            prompt=number,
            turn=turn,
            peer=worker.plan.peer.name,
            case=case,
            tokens=answer["tokens"],
            first_token=answer["first_token"],
            seconds_per_token=answer["seconds_later"] / answer["num_later"],
        )
        with self._records_file.open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")
        self._say(f"{dataset} {number:4}  {record.peer} {case:20} {record.rate:8.2f} tok/s")

    def _leave_out(self, name: str, error: PeerError) -> None:
        self._notes[name] = f"left out: {error}"
        self._say(f"{name} is {self._notes[name]}")

    def report(self) -> str:
        """Also written to report.md."""
        facts = {**self._settings, **where_and_when()}
        lines = ["# Peers", "", *PeersFigures(self.records()).lines(), "", "## How", ""]
        lines += [f"- {name}: {value}" for name, value in facts.items() if name != "prompts"]
        lines += [f"- {name}: {note}" for name, note in self._notes.items()]
        text = "\n".join(lines) + "\n"
        (self._folder / "report.md").write_text(text)
        return text
