"""Faults at every step of the protocol: the tokens stay those of plain decoding, and nothing leaks.

    python -m campaigns.e2e.faults --trials 450

runs seeded trials on a fault-injecting transport with tiny models and prints a table.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from campaigns.e2e.faulty_link import KINDS, WIRE_FAULTS, FaultyLink, Plan
from ssd import LLM, SamplingParams
from ssd.attention.batch import Batch
from ssd.attention.inputs import SequenceInput
from ssd.decoding.ahead import DraftAhead
from ssd.decoding.decoder import Decoder
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import FixedSources
from ssd.draft.client.replica import LONGEST_DELAY
from ssd.draft.client.speculator import Speculator
from ssd.draft.protocol.messages import Hello
from ssd.draft.protocol.sockets import EngineSocket
from ssd.runtime.runner import InFlightStep, Runner
from tests.e2e.draft_in_memory import InMemoryDraft
from tests.tiny import cut_layers, write_checkpoint

T = TypeVar("T")

PROCESS_FAULTS = ("kill", "stop")
PROMPTS = ["The quick brown fox jumps over", "def add(a, b):\n    return a + b\n", "Once upon a time"]
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "bfloat16",
    "deterministic": True,
    "show_progress": False,
}


def params(seed: int) -> list[SamplingParams]:
    common: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True}
    return [
        SamplingParams(temperature=0, **common),
        SamplingParams(temperature=0.7, seed=seed, repetition_penalty=1.2, **common),
        SamplingParams(temperature=1.0, seed=seed + 1, top_p=0.95, **common),
    ]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class Target:
    """The real target; while it computes the draft takes some steps, and things may happen to it."""

    is_async = False
    num_uncaptured = 0

    def __init__(self, runner: Runner, trial: "Trial") -> None:
        self._runner, self._trial = runner, trial

    def batch(self, rows: Sequence[SequenceInput]) -> Batch:
        return self._runner.batch(rows)

    def launch(self, batch: Batch, finish: Callable[[Tensor], T]) -> InFlightStep[T]:
        self._trial.between_steps()
        return self._runner.launch(batch, finish)


@dataclass(frozen=True, slots=True)
class Result:
    hits: int
    num_struck: int
    wrong: int
    """Requests that ended with other tokens than plain decoding."""
    leaks: int


@dataclass
class Trial:
    """One run of three requests under one fault."""

    fault: str
    kind: str
    seed: int
    draft: InMemoryDraft | None = None
    client: DraftClient | None = None
    links: list[FaultyLink] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    _num_steps: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._when = self._random.randint(2, 12)

    def wrap(self, link: EngineSocket) -> EngineSocket:
        if self.fault in PROCESS_FAULTS:
            return link
        # Later lines are whole: a draft that is corrupted for ever is never of use.
        chance = (0.3, 0.1)[len(self.links)] if len(self.links) < 2 else 0.0
        plan = Plan(self.fault, self.kind, chance, self.seed + len(self.links))  # type: ignore[arg-type]
        self.links.append(FaultyLink(link, plan))
        return self.links[-1]

    def between_steps(self) -> None:
        assert self.draft is not None
        self._num_steps += 1
        self.clock.now += 0.2
        if self.fault == "kill" and self._num_steps == self._when:
            self.draft.kill()
        if self.fault == "stop" and self._num_steps >= self._when:
            self.draft.is_stopped = self._num_steps < self._when + 8
        # What a thread of its own does where there is one; here it is done at the same place every time.
        if self.client is not None:
            self.client.pool.tend()
        self.draft.pump(self._random.randint(0, 3))


class Bench:
    """The models, loaded once, and what plain decoding makes of the prompts."""

    def __init__(self, folder: Path) -> None:
        self.target = write_checkpoint("medium", folder / "target")
        self.drafts = {"itself": self.target, "cut": cut_layers(self.target, 2, folder / "cut")}
        self.llm = LLM(str(self.target), **SETTINGS)
        self._runner = self.llm._engine.core._decoder._runner
        self._expected: dict[int, list[Any]] = {}

    def run(self, trial: Trial) -> "Result":
        expected = self._plain(trial.seed % 5)
        client, decoder = self._decoder(trial)
        core = self.llm._engine.core
        plain, core._decoder = core._decoder, decoder
        try:
            found = self.llm.generate(PROMPTS, params(trial.seed % 5), use_tqdm=False)
        finally:
            core._decoder = plain
        core.check_integrity()
        num_struck = sum(link.num_struck for link in trial.links)
        return Result(
            hits=sum(each.outputs[0].speculation.hits for each in found),
            num_struck=1 if trial.fault in PROCESS_FAULTS else num_struck,
            wrong=sum(each.outputs != plain for each, plain in zip(found, expected, strict=True)),
            leaks=(core._blocks.usage > 0) + self._leaks_of_draft(trial, client),
        )

    def _plain(self, seed: int) -> list[Any]:
        if seed not in self._expected:
            found = self.llm.generate(PROMPTS, params(seed), use_tqdm=False)
            self._expected[seed] = [each.outputs for each in found]
        return self._expected[seed]

    def _decoder(self, trial: Trial) -> tuple[DraftClient, Decoder]:
        hello = Hello.of(self.llm.tokenizer, vocab_size=512, name="target", max_model_len=512)
        draft = self.drafts["itself" if trial.seed % 3 else "cut"]
        trial.draft = InMemoryDraft(draft, hello, trial.clock, trial.wrap)
        client = trial.client = DraftClient(FixedSources(trial.draft), lookahead=4, clock=trial.clock)
        speculator = Speculator(client, lookahead=4, clock=trial.clock)
        return client, Decoder(Target(self._runner, trial), DraftAhead(speculator))

    def _leaks_of_draft(self, trial: Trial, client: DraftClient) -> int:
        """Once the wire is whole, the draft holds nothing that the engine does not follow."""
        draft = trial.draft
        assert draft is not None
        draft.is_stopped = False
        for link in trial.links:
            link._out._plan = link._in._plan = Plan("drop", "nothing", 0.0, 0)
        # A lost CLOSE is made good by the next greeting.
        client.check_integrity()
        client.pool.lose("the trial is over")
        trial.clock.now += LONGEST_DELAY
        for _ in range(6):
            client.pool.tend()
            client.pool.read()
            draft.pump(2)
        if draft.service is None:
            return 0
        draft.service.check_integrity()
        return draft.service._scheduler.num_sessions + (draft.service._scheduler.kv_usage > 0)


def trials(count: int) -> list[Trial]:
    kinds: list[tuple[str, str]] = [(fault, kind) for fault in WIRE_FAULTS for kind in KINDS]
    kinds += [(fault, "any") for fault in PROCESS_FAULTS for _ in range(7)]
    return [Trial(*kinds[index % len(kinds)], seed=index) for index in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=450)
    count = parser.parse_args().trials
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        results = defaultdict[str, list[Result]](list)
        started = time.perf_counter()
        for trial in trials(count):
            results[trial.fault].append(bench.run(trial))
    seconds = time.perf_counter() - started
    print(f"{'fault':12}{'trials':>8}{'struck':>8}{'median hits':>13}{'wrong':>8}{'leaks':>7}")
    for fault, found in results.items():
        hits = statistics.median(each.hits for each in found)
        struck, wrong, leaks = (
            sum(getattr(each, name) for each in found) for name in ("num_struck", "wrong", "leaks")
        )
        print(f"{fault:12}{len(found):8}{struck:8}{hits:13}{wrong:8}{leaks:7}")
    everything = [each for found in results.values() for each in found]
    num_bad = sum(bool(each.wrong or each.leaks) for each in everything)
    print(f"{len(everything)} trials in {seconds:.0f} s, {num_bad} of them bad")
    sys.exit(1 if num_bad else 0)


if __name__ == "__main__":
    main()
