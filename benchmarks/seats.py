"""How many sequences a draft should take: tokens a round of one target, by the draft's rows and its trees.

    python -m benchmarks.seats [--batch 256] [--trees 64 256] [--rows 256 576 1024] [--rounds 40]

The draft server and the client are real; a rule (ruled.py) stands for both models, and a clock of the
benchmark's own gives each draft step a quarter of a round, so nothing depends on the machine. `rows` are
those of a round. Sequences beyond the trees, or beyond what the draft announces, are verified without a
draft.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.client_work import DraftHere
from benchmarks.flags import parser
from benchmarks.ruled import RuledModel, outcome, prompt_of, shape_of
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import FixedSources
from ssd.draft.client.speculator import Speculator, Verified
from ssd.draft.protocol.messages import Sampling
from ssd.draft.tree.model import PrefillChunk
from ssd.draft.tree.tables import Tables, TreeRows

FLAGS = {"batch": 256, "trees": [64, 256], "rows": [256, 576, 1024], "rounds": 40}
STEPS = 4
"""Of the draft in a round."""
STEP = 0.005
LOOKAHEAD = 8
WARM_UP = 30
"""Rounds before it counts. All sequences end after a third of them, so that as many are opened as pay off."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedModel(RuledModel):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        self._clock.now += STEP
        return super().forward(rows, tables, chunks)


def tokens_a_round(batch: int, trees: int, rows: int, rounds: int) -> tuple[float, int]:
    """Also how many sequences the draft has at the end."""
    clock = Clock()
    draft = DraftHere(shape_of(trees, LOOKAHEAD, width=rows // STEPS), clock, TimedModel(clock))
    client = DraftClient(FixedSources(draft), lookahead=LOOKAHEAD, clock=clock)
    speculator = Speculator(client, lookahead=LOOKAHEAD, backup="none", clock=clock)
    while not client.is_ready:
        client.pool.tend()
        draft.turn(1)
    ids, lasts = [f"request {index}" for index in range(batch)], [0] * batch
    drafted: list[Sequence[int]] = [()] * batch
    num_accepted, ends = 0, clock.now
    for number in range(WARM_UP + rounds):
        if number in (0, WARM_UP // 3):
            lasts = _begin_all(speculator, ids)
            drafted = [()] * batch
        for _ in range(STEPS):
            draft.turn(1)
            speculator.take_in()
        # A round is longer than the steps that the draft took, where it had nothing to do in one of them.
        ends += STEPS * STEP
        clock.now = max(clock.now, ends)
        texts = [outcome(*each) for each in zip(lasts, drafted, strict=True)]
        lasts = [each[-1] for each in texts]
        speculator.settle([Verified(*each) for each in zip(ids, texts, map(len, drafted), strict=True)])
        if number >= WARM_UP:
            num_accepted += sum(len(each) - 1 for each in texts)
        drafted = [path.tokens for path in speculator.propose(ids)]
    return 1 + num_accepted / rounds / batch, client.stats.num_sequences


def _begin_all(speculator: Speculator, ids: Sequence[str]) -> list[int]:
    for index, request_id in enumerate(ids):
        speculator.forget(request_id)
        speculator.begin(request_id, prompt_of(index), (), Sampling(seed=0), 1 << 30)
    return [prompt_of(index)[-1] for index in range(len(ids))]


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    torch.set_num_threads(1)
    print("rows a round   trees   sequences   tokens a round")
    for rows in options.rows:
        for trees in options.trees:
            tokens, sequences = tokens_a_round(options.batch, trees, rows, options.rounds)
            print(f"{rows:<15}{trees:<8}{sequences:<12}{tokens:.2f}", flush=True)


if __name__ == "__main__":
    main()
