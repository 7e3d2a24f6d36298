"""Verified trees on a real runner: what is decided, and where keys lie afterwards."""

import random
from collections.abc import Sequence

import pytest
import torch

from ssd.attention.inputs import PlainInput
from ssd.config import RunnerConfig
from ssd.decoding.rows import DecodeRow, Speculation
from ssd.decoding.tree_slots import TreeSlots
from ssd.decoding.verification import decided_positions, verify, worth_verifying
from ssd.runtime.loading import LoadedModel, load_model
from ssd.runtime.runner import forward
from ssd.sampling import History, SamplingParams, SamplingRow
from ssd.sampling.constraint import Allowed
from tests.tiny import write_checkpoint

BLOCK, NUM_BLOCKS, TABLE = 4, 64, 16
PARAMS = SamplingParams(temperature=1.0, logprobs=2)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    model = str(write_checkpoint("medium", tmp_path_factory.mktemp("target")))
    return load_model(
        RunnerConfig(
            model=model, device="cpu", dtype="float32", block_size=BLOCK, num_blocks=NUM_BLOCKS,
            num_trees=2, max_model_len=BLOCK * TABLE, deterministic=True,
        )
    )  # fmt: skip


class Text:
    """A sequence in blocks of its own; all but its last token are computed."""

    def __init__(self, loaded: LoadedModel, seed: int, first_block: int) -> None:
        drawn = random.Random(seed)
        self.loaded, self.seed = loaded, seed
        self.blocks = drawn.sample(range(first_block, first_block + TABLE), TABLE)
        self.tokens = [drawn.randrange(2, 300) for _ in range(drawn.randint(2, 20))]
        self.num_prompt = len(self.tokens) - 1
        forward(loaded.runner, [PlainInput(self.tokens[:-1], 0, self.blocks, 1, generated=False)])

    def row(self, drafted: Sequence[int] = (), parents: Sequence[int] | None = None) -> DecodeRow:
        history = History(self.tokens, self.num_prompt)
        sampling = SamplingRow(
            PARAMS, self.seed, len(self.tokens), tuple(self.tokens[: self.num_prompt]), history
        )
        return DecodeRow(
            [self.tokens[-1], *drafted], len(self.tokens) - 1, self.blocks, True, sampling, len(drafted),
            parents=parents,
        )  # fmt: skip

    def slots(self) -> list[int]:
        return [self.blocks[i // BLOCK] * BLOCK + i % BLOCK for i in range(len(self.tokens))]

    def decode(self, count: int) -> list[int]:
        """Plainly, one after the other."""
        for _ in range(count):
            [decided] = verify(self.loaded.runner, [self.row()])
            self.tokens += [each.token for each in decided.tokens]
        return self.tokens[-count:]


def tree_around(truth: Sequence[int]) -> tuple[list[int], list[int]]:
    """Three deep, the truth last among siblings, cousins with its tokens before it."""
    a, b, c = truth[:3]
    tokens = [a + 1, a, b, b + 1, b, c, c + 1, c]
    return tokens, [-1, -1, 0, 1, 1, 3, 4, 4]


def test_keys_of_the_accepted_path_are_those_of_plain_decoding(loaded: LoadedModel) -> None:
    """To the bit, at the same positions; and nobody else's page is touched."""
    tree_slots = TreeSlots.of(loaded.pool)
    for seed in range(12):
        plain, speculated = Text(loaded, seed, 0), Text(loaded, seed, TABLE)
        stranger = Text(loaded, seed + 100, 2 * TABLE)
        truth = plain.decode(4)
        rows = [stranger.row([1, 2], [-1, -1]), speculated.row(*tree_around(truth))]
        before = loaded.pool.keys.clone()
        outcomes = verify(loaded.runner, rows, tree_slots=tree_slots)
        tree_slots.settle(rows, outcomes)
        new = [each.token for each in outcomes[1].tokens]
        assert (new, outcomes[1].branch) == (truth, (1, 4, 7))
        assert outcomes[0].branch == ()
        written = speculated.slots()[-1:]
        speculated.tokens += new[:-1]
        written += speculated.slots()[len(speculated.tokens) - 3 :]
        for pool in (loaded.pool.keys, loaded.pool.values):
            kept = [pool[:, :, text.slots()[: len(speculated.tokens)]] for text in (plain, speculated)]
            assert torch.equal(*kept)
        others = sorted(set(range(NUM_BLOCKS * BLOCK)) - {*written, stranger.slots()[-1]})
        assert torch.equal(loaded.pool.keys[:, :, others], before[:, :, others])


def test_positions_and_histories_follow_paths() -> None:
    tokens = [4, 4, 2]
    sampling = SamplingRow(PARAMS, 9, 3, (4, 4), History(tokens, 2))
    row = DecodeRow([2, 1, 3, 5], 2, [0], True, sampling, num_drafted=3, parents=(-1, -1, 1))
    positions = decided_positions(row)
    assert [each.position for each in positions] == [3, 4, 4, 5]
    assert [list(each.output) for each in positions] == [[2], [2, 1], [2, 3], [2, 3, 5]]


class OddsThenEvens:
    """After an even token only odd ones are allowed, and the other way round; the text ends with `last`."""

    problem, most_drafted = "", 64

    def __init__(self, last: int) -> None:
        self.last = last

    def state(self) -> None: ...

    def masks(self, drafted: Sequence[int]) -> list[Allowed]:
        import numpy as np

        found = []
        for place in range(self.num_allowed(drafted) + 1):
            last = [self.last, *drafted][place]
            found.append(np.array([0x55555555 if last % 2 else 0xAAAAAAAA], np.uint32).view(np.int32))
        return found

    def num_allowed(self, drafted: Sequence[int]) -> int:
        texts = [self.last, *drafted]
        wrong = (i for i in range(len(drafted)) if texts[i] % 2 == texts[i + 1] % 2)
        return next(wrong, len(drafted))

    def advance(self, tokens: Sequence[int]) -> None:
        self.last = [self.last, *tokens][-1]


def test_every_node_has_the_mask_of_its_path() -> None:
    constraint = OddsThenEvens(2)
    drafted, parents = (3, 5, 4, 6, 7), (-1, -1, 0, 2, 3)
    kept, kept_parents = worth_verifying(Speculation(drafted, parents=parents), constraint)
    assert (kept, kept_parents) == ((3, 5, 4), (-1, -1, 0))
    sampling = SamplingRow(PARAMS, 9, 3, (4, 4), History([4, 4, 2], 2), constraint=constraint)
    row = DecodeRow([2, *kept], 2, [0], True, sampling, num_drafted=3, parents=kept_parents)
    odd, even = constraint.masks(())[0], OddsThenEvens(3).masks(())[0]
    masks = [each.allowed for each in decided_positions(row)]
    assert [list(mask) for mask in masks if mask is not None] == [list(m) for m in (odd, even, even, odd)]
