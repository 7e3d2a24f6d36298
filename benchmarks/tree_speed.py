"""Trees against chains where rows are nearly free: stand-ins for the models, at the ratios of GPUs.

    python -m benchmarks.tree_speed [--acceptance 0.6 0.74 0.87] [--batch 1] [--steps 10] [--free 32] \\
        [--width 4] [--texts 12] [--tokens 160] [--record docs/records/tree_speed.jsonl]

Engine, speculator, client, protocol and draft server are the real ones, in simulated time: a draft takes
--steps steps in the time of a verification, which is the same up to --free rows and in proportion beyond
them. What the host takes beside them is not in it (benchmarks/host_gap.py). What is decoded is a drawn text:
at each place the draft has guesses with chances that hold. Each text is decoded by two engines, one that may
verify trees and one that may not. Printed: tokens a round, tokens in the time of a plain verification, and
the ratio tree over chain within a text, with its interval.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.drawn_text import VOCAB, DrawnDraft, DrawnText, hello
from benchmarks.flags import parser
from benchmarks.ruled import BLOCK, NUM_BLOCKS, scheduler_of, shape_of
from ssd.bench.statistics import paired_ratio
from ssd.config import TREES_PER_STEP
from ssd.decoding.ahead import DraftAhead
from ssd.decoding.decoder import Decoder
from ssd.decoding.tree_slots import TreeSlots
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import Connection, FixedSources
from ssd.draft.client.speculator import Speculator
from ssd.draft.server.server import DraftServer
from ssd.engine.core import EngineCore
from ssd.engine.request import Request
from ssd.engine.schedule import SchedulerLimits
from ssd.kvcache.block_manager import BlockManager
from ssd.kvcache.pool import NODES_PER_TREE
from ssd.runtime.runner import FinishedStep, InFlightStep
from ssd.sampling import SamplingParams
from tests.e2e.draft_in_memory import DraftEnd, EngineEnd, Wires
from tests.row_runner import RowRunner
from tests.tiny import tiny_tokenizer

FLAGS: dict[str, object] = {
    "acceptance": [0.6, 0.74, 0.87], "coverage": 0.7, "batch": [1], "steps": 10, "free": 32, "width": 4,
    "lookahead": 8, "texts": 12, "tokens": 160, "record": None,
}  # fmt: skip
FORMS = ("chain", "tree")
_WARM_UP = 2
"""Texts by which the controllers learn what rows cost."""

T = TypeVar("T")


class World:
    """A draft and a clock: time passes by the draft's steps. A verification takes one second."""

    name = "a draft"

    def __init__(self, text: DrawnText, options: Any, batch: int) -> None:
        self.now, self._step = 0.0, 1 / options.steps
        self._wires = Wires()
        shape = shape_of(batch, options.lookahead, width=options.width, slots=NODES_PER_TREE)
        scheduler = scheduler_of(
            DrawnDraft(text, self._pass), prefill_chunk=1024, shape=shape, clock=self.clock
        )
        self._service = DraftServer(scheduler, DraftEnd(self._wires), hello("draft"), self.clock)

    def clock(self) -> float:
        return self.now

    def turn(self) -> None:
        """A step of the draft, which hears first and speaks last; or as long a rest."""
        started = self.now
        self._service.turn(0.0)
        if self.now == started:
            self._pass()

    def _pass(self) -> None:
        self.now += self._step

    def client(self, lookahead: int) -> DraftClient:
        client = DraftClient(FixedSources(self), lookahead=lookahead, clock=self.clock)
        while not client.is_ready:
            client.pool.tend()
            self.turn()
            client.pool.read()
        return client

    # What the client asks of a source.

    def connect(self) -> Connection | None:
        link = EngineEnd(self._wires, self.turn)
        return Connection(link, hello("target"), self.clock, timeout=1e6, hello_timeout=1e6)

    def is_broken(self) -> str:
        return ""

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Simulated(FinishedStep[T]):
    ends: float
    world: World

    def is_done(self) -> bool:
        if self.world.now < self.ends:
            self.world.turn()
        return self.world.now >= self.ends

    def collect(self) -> T:
        while not self.is_done():
            pass
        return self.result


class Target(RowRunner):
    """Whose rows are free up to a number, and cost in proportion beyond it."""

    is_async = True

    def __init__(self, text: DrawnText, world: World, num_free: int) -> None:
        self._text, self._world, self._num_free = text, world, num_free

    def launch(self, batch: Any, finish: Callable[[Tensor], T]) -> InFlightStep[T]:
        num_rows = sum(len(row.tokens) for row in batch)
        ends = self._world.now + max(1.0, num_rows / self._num_free)
        return Simulated(finish(self._text.target_logits(batch)), ends - 1e-9, self._world)


class Engine:
    """One form of verification, in a world of its own."""

    def __init__(self, options: Any, text: DrawnText, batch: int, *, num_trees: int) -> None:
        self._text, self._batch, self._num_tokens = text, batch, options.tokens
        self.world = World(text, options, batch)
        client, clock = self.world.client(options.lookahead), self.world.clock
        speculator = Speculator(client, lookahead=options.lookahead, num_trees=num_trees, clock=clock)
        target = Target(text, self.world, options.free)
        decoder = Decoder(target, DraftAhead(speculator), TreeSlots(range(num_trees), BLOCK))
        limits = SchedulerLimits(batch, 16384, 4096)
        blocks = BlockManager(NUM_BLOCKS, BLOCK)
        self.core = EngineCore(decoder, blocks, limits, tiny_tokenizer(), clock)

    def decode(self, number: int) -> tuple[float, float]:
        """A batch of texts: tokens in the time of a plain verification, and a round."""
        params = SamplingParams(temperature=0, max_tokens=self._num_tokens, ignore_eos=True)
        before, started = self.core.stats.speculation, self.world.now
        for place in range(self._batch):
            name = f"{number}.{place}"
            prompt = tuple(self._text.part((number * 397 + place * 61) % VOCAB, 16))
            self.core.add(Request(name, None, prompt, params, number, ()))
        found = list[tuple[int, ...]]()
        while self.core.has_work:
            found += [output.outputs[0].token_ids for output in self.core.step().finished]
        for tokens in found:
            if list(tokens) != self._text.part(tokens[0], len(tokens)):
                raise RuntimeError("a token is not the target's own")
        after = self.core.stats.speculation
        a_round = 1 + (after.accepted - before.accepted) / (after.rounds - before.rounds)
        return sum(map(len, found)) / (self.world.now - started), a_round


def measure(options: Any, acceptance: float, batch: int) -> dict[str, Any]:
    text, found = DrawnText(acceptance, options.coverage), dict[str, list[tuple[float, float]]]()
    for form in FORMS:
        num_trees = TREES_PER_STEP * (form == "tree")
        engine = Engine(options, text, batch, num_trees=num_trees)
        with patch.object(time, "monotonic", engine.world.clock):
            every = [engine.decode(number) for number in range(_WARM_UP + options.texts)]
        found[form] = every[_WARM_UP:]
    rates = {form: [rate for rate, _a_round in found[form]] for form in FORMS}
    return {
        "acceptance": acceptance,
        "batch": batch,
        **{name: getattr(options, name) for name in ("coverage", "steps", "free", "width", "texts")},
        **{f"tokens a round, {form}": round(_mean([each[1] for each in found[form]]), 3) for form in FORMS},
        **{f"tokens a verification, {form}": round(_mean(rates[form]), 3) for form in FORMS},
        "tree over chain": str(paired_ratio(rates["tree"], rates["chain"])),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    torch.set_num_threads(1)
    for acceptance in options.acceptance:
        for batch in options.batch:
            line = json.dumps(measure(options, acceptance, batch), ensure_ascii=False)
            print(line, flush=True)
            if options.record is not None:
                with Path(options.record).open("a") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()
