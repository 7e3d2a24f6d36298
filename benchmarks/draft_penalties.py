"""What parameters that look at tokens cost in a draft step on a CPU, beside its forward.

    python -m benchmarks.draft_penalties [--width 12 64] [--vocab 151936] [--prompt 400] [--rounds 12]

Texts of one step ask for the same temperature and truncation: without penalties, with all three, and with
them, a minimum length, bad words and bias. Drawn logits stand for the model; making them is not counted. The
cases take turns, and ratios are taken within a round. Seconds are of this process's one thread, so that
others on the machine disturb less.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.flags import parser
from benchmarks.in_turns import show_ratios, show_times, take_turns
from benchmarks.ruled import BLOCK, CONTEXT, NUM_BLOCKS, host_steps
from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server.scheduler import DraftScheduler, HostLimits
from ssd.draft.server.session import DraftSession
from ssd.draft.tree.model import PrefillChunk
from ssd.draft.tree.tables import Moves, Shape, Tables, TreeRows
from ssd.kvcache.block_manager import BlockManager

FLAGS = {"width": [12, 64], "vocab": 151_936, "prompt": 400, "rounds": 12, "steps": 4}
PLAIN: dict[str, dict[str, Any]] = {
    "truncated": {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
    "coupled": {"temperature": 1.0},
    "greedy": {},
}
PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.1,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.1,
}
EVERYTHING: dict[str, Any] = PENALTIES | {
    "min_tokens": 1000,
    "end_ids": [2],
    "bad_word_ids": [[11, 12], [13]],
    "logit_bias": [(5, 1.0), (6, -2.0)],
}
KINDS = {"without": {}, "penalties": PENALTIES, "everything": EVERYTHING}
ROWS_A_TEXT = 4
LOOKAHEAD = 8


class DrawnModel:
    """Logits with a few likely tokens, by the token of the row. Seconds that they took are counted apart."""

    def __init__(self, vocab: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self._known = torch.randn(32, vocab, generator=draw) * 2
        self.seconds = 0.0

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        started = time.process_time()
        logits = self._known[torch.from_numpy(rows.token[rows.attaches] % len(self._known))]
        self.seconds += time.process_time() - started
        return logits

    def move(self, moves: Moves) -> None:
        pass


class Texts:
    """As many texts as a step has rows for, and rounds of some steps and an outcome for each text."""

    def __init__(self, width: int, vocab: int, prompt: int, steps: int, sampling: dict[str, Any]) -> None:
        self._model, self._steps, self._n = DrawnModel(vocab), steps, 0
        batch = max(1, width // ROWS_A_TEXT)
        shape = Shape(
            batch,
            width,
            rows=width + batch * (LOOKAHEAD + 1),
            outcome=LOOKAHEAD + 1,
            block=BLOCK,
            blocks=CONTEXT // BLOCK,
            first_tree_slot=NUM_BLOCKS * BLOCK,
        )
        self._scheduler = DraftScheduler(
            host_steps(self._model, shape),
            BlockManager(NUM_BLOCKS, BLOCK),
            HostLimits(1 << 20, CONTEXT),
            clock=lambda: 0.0,
        )
        draw = np.random.default_rng(1)
        self._texts: list[DraftSession] = []
        for number in range(batch):
            tokens = draw.integers(0, vocab, prompt).tolist()
            asked = Sampling(seed=number, **sampling)
            session = DraftSession(
                Open(number, 1, pack_ints(tokens), prompt, 1 << 20, LOOKAHEAD, asked), CONTEXT
            )
            self._texts.append(session)
            self._scheduler.open(session)
        self._scheduler.grow()

    def seconds_a_step(self) -> float:
        self._n += 1
        for number, session in enumerate(self._texts):
            session.note_arrival(session.num_sent)
            self._scheduler.advance(session, self._n, [7 * self._n + number])
        self._model.seconds = 0.0
        started = time.process_time()
        for _ in range(self._steps):
            self._scheduler.grow()
        return (time.process_time() - started - self._model.seconds) / self._steps


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    torch.set_num_threads(1)
    for width in options.width:
        measures = {
            f"{name}, {kind}": Texts(
                width, options.vocab, options.prompt, options.steps, asked | more
            ).seconds_a_step
            for name, asked in PLAIN.items()
            for kind, more in KINDS.items()
        }
        found = take_turns(measures, options.rounds, warm_up=2)
        print(f"\nA step of {width} rows, {options.vocab:,} tokens, without its forward\n")
        show_times(found)
        pairs = {f"{name}, {kind}" for name in PLAIN for kind in KINDS if kind != "without"}
        show_ratios(found, {each: (each, f"{each.split(',')[0]}, without") for each in sorted(pairs)})


if __name__ == "__main__":
    main()
