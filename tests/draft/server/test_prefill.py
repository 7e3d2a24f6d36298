"""Long prompts open in few chunks, and trees of other sequences keep growing meanwhile.

In virtual time, at the price of an H100: a step takes what docs/gpu-kernels.md says of Llama-3.2-1B, and a
prompt's token its arithmetic.
"""

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from ssd.draft.client.mirrors import Knowledge
from ssd.draft.server.prefill import ChunkBudget
from ssd.draft.tree.model import PrefillChunk
from ssd.draft.tree.tables import Tables, TreeRows
from ssd.planning.hardware import find_device
from tests.draft.crowd import STEP, CountingModel, Crowd, Target

ROUND, CHUNK, PROMPT, PROMPTS = 20e-3, 2048, 4000, 16
TOKEN = 2 * 1.24e9 / (0.5 * find_device("h100").flops)
"""Seconds, at half of the arithmetic of its data sheet."""


class PricedModel(CountingModel):
    def __init__(self) -> None:
        super().__init__()
        self.chunks: Counter[int] = Counter()
        """By row of the tables."""
        self.num_read = 0

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        num_tokens = sum(len(each.tokens) for each in chunks)
        self.num_read += num_tokens
        self.seconds += TOKEN * num_tokens
        self.chunks.update(each.row for each in chunks)
        return super().forward(rows, tables, chunks)


class PricedCrowd(Crowd):
    def __init__(self) -> None:
        self.priced = PricedModel()
        super().__init__(prefill_chunk=CHUNK, model=self.priced)
        self._next_round: dict[int, float] = {}

    def play(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            before = self.priced.seconds
            for number, target in enumerate(self.targets.values()):
                target.client.pool.read()
                if self.now >= self._next_round.get(number, self.now):
                    self._next_round[number] = self.now + ROUND
                    target.round()
            self.service.turn(0.0)
            # Without work it looks again after a while.
            self.now += self.priced.seconds - before or STEP
        self.service.check_integrity()

    def hits(self, target: Target, seconds: float) -> float:
        """The share of hits in this time."""
        target.known.clear()
        self.play(seconds)
        return target.known[Knowledge.HIT] / target.known.total()


def test_a_long_prompt_opens_in_two_chunks() -> None:
    crowd = PricedCrowd()
    crowd.add("a", 1, prompt=PROMPT, max_tokens=50)
    crowd.play(0.2)
    assert list(crowd.priced.chunks.values()) == [2]


def test_trees_keep_growing_while_long_prompts_open() -> None:
    crowd = PricedCrowd()
    growing = crowd.add("growing", 8, prompt=32, max_tokens=2000, key="both")
    crowd.play(0.5)
    alone = crowd.hits(growing, 1.0)
    crowd.add("opening", PROMPTS, prompt=PROMPT, max_tokens=50, key="both")
    beside = crowd.hits(growing, 0.5)
    assert crowd.priced.num_read > 8 * PROMPT, "so little was read that it could not disturb"
    assert alone > 0.8
    assert beside >= 0.9 * alone


def test_a_chunk_is_as_long_as_others_can_bear_and_then_they_grow_as_long() -> None:
    budget = ChunkBudget(CHUNK)
    assert budget.tokens(others_grow=False) == CHUNK
    assert budget.tokens(others_grow=True) == 256, "nothing is measured yet"
    budget.note_launch()
    assert budget.tokens(others_grow=True) == 0
    budget.note_end(256, 0.012, 0.002)
    assert budget.tokens(others_grow=True) == 0
    for _ in range(5):
        budget.note_end(0, 0.002, 0.002)
    # 256 tokens took 10 ms.
    assert budget.tokens(others_grow=True) == 512
