"""Penalties and the like on all rows of a step: the same bits as row by row, for little more work."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server.device_steps import DeviceParts, DeviceSteps
from ssd.draft.server.host_steps import HostSteps
from ssd.draft.server.scheduler import DraftScheduler, HostLimits
from ssd.draft.server.session import DraftSession
from ssd.draft.server.steps import Steps
from ssd.draft.tree.arrays import NumpyArrays, TorchArrays
from ssd.draft.tree.children import ChildChooser, ChosenChildren, FixedChildren, LooseChildren, SamplingNeeds
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.tables import Shape, Tables, TreeRows
from ssd.kvcache.block_manager import BlockManager
from ssd.sampling import History, SamplingRow
from ssd.sampling.processors import edit_rows
from ssd.selftest.recording import RunAgain
from tests.draft.tree.contexts import ForestRunner, Texts

BLOCK, NUM_BLOCKS, MAX_LEN, LOOKAHEAD = 16, 256, 400, 6
PENALISED: dict[str, Any] = {
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.2,
    "presence_penalty": 0.4,
}
EDITED: tuple[dict[str, Any], ...] = (
    PENALISED,
    {"temperature": 0.8, "frequency_penalty": 0.7, "top_p": 0.9},
    {"repetition_penalty": 0.8, "logit_bias": [(5, 3.0), (9, -4.0)], "min_tokens": 12, "end_ids": [3, 4]},
    {"temperature": 1.0, "bad_word_ids": [[11, 12], [13], [6, 2, 7], [1, 5], [2, 5]]},
    {"min_tokens": 9, "end_ids": [2]},
    {},
)


class Contexts(Texts):
    """Keeps what each row of the latest forward saw."""

    def __init__(self, vocab: int) -> None:
        super().__init__(vocab)
        self.seen: list[list[int]] = []

    def logits(self, tokens: Any) -> Tensor:
        self.seen.append(tokens.tolist())
        return super().logits(tokens)


class CheckedChildren:
    """Compares the logits that children are chosen from with those edited row by row."""

    def __init__(self, children: ChildChooser, contexts: Contexts, texts: dict[int, DraftSession]) -> None:
        self._children, self._contexts, self._texts = children, contexts, texts
        self.num_checked = self.num_changed = 0

    def of(self, logits: Tensor, tables: Tables, rows: TreeRows) -> ChosenChildren:
        attaching = np.flatnonzero(np.asarray(rows.attaches))
        sequences = np.asarray(rows.sequence)[attaching].tolist()
        found = logits[torch.from_numpy(attaching)] if isinstance(rows.token, Tensor) else logits
        for place, (sequence, context) in enumerate(zip(sequences, self._contexts.seen, strict=True)):
            session = next(each for each in self._texts.values() if each.row == sequence)
            raw = Texts.logits(self._contexts, np.array(context)).unsqueeze(0)
            expected, _void = edit_rows(raw, [decided(session, context)])
            assert torch.equal(found[place], expected[0])
            self.num_checked += 1
            self.num_changed += not torch.equal(expected, raw)
        self._contexts.seen.clear()
        return self._children.of(logits, tables, rows)


def decided(session: DraftSession, context: Sequence[int]) -> SamplingRow:
    sampling, num_prompt = session.opening.sampling, session.opening.num_prompt
    return SamplingRow(
        params=session.params,
        seed=sampling.seed,
        position=len(context),
        prompt=context[:num_prompt],
        output=History(context, num_prompt),
        end_ids=tuple(sampling.end_ids),
        bad_word_ids=tuple(map(tuple, sampling.bad_word_ids)),
    )


def shape_of(sequences: int, width: int, lookup: int) -> Shape:
    return Shape(
        sequences,
        width,
        rows=width + 8 * sequences,
        lookup=lookup,
        outcome=LOOKAHEAD + 1,
        block=BLOCK,
        blocks=MAX_LEN // BLOCK,
        first_tree_slot=NUM_BLOCKS * BLOCK,
    )


def on_arrays(
    contexts: Contexts, texts: dict[int, DraftSession], shape: Shape
) -> tuple[Steps, CheckedChildren]:
    children = CheckedChildren(LooseChildren(4), contexts, texts)
    return HostSteps(Forest(NumpyArrays(), shape), ForestRunner(contexts, shape), children), children


def on_a_device(
    contexts: Contexts, texts: dict[int, DraftSession], shape: Shape
) -> tuple[Steps, CheckedChildren]:
    needs, xp = SamplingNeeds(samples=True, truncates=True), TorchArrays()
    children = CheckedChildren(FixedChildren(4, needs), contexts, texts)
    parts = DeviceParts(
        torch.device("cpu"),
        lambda rows, tables: Forest(xp, rows, "value", tables),
        ForestRunner(contexts, shape),
        children,
        children,
        None,
        RunAgain(),
    )
    return DeviceSteps(parts, shape, buckets=()), children


@pytest.mark.parametrize("made", [on_arrays, on_a_device])
def test_rows_edited_together_have_the_bits_of_rows_edited_alone(made: Callable[..., Any]) -> None:
    rng, vocab, texts = random.Random(1), 16, dict[int, DraftSession]()
    contexts, shape = Contexts(vocab), shape_of(len(EDITED), 20, lookup=6)
    steps, children = made(contexts, texts, shape)
    blocks, limits = BlockManager(NUM_BLOCKS, BLOCK), HostLimits(1 << 20, MAX_LEN)
    scheduler = DraftScheduler(steps, blocks, limits, clock=lambda: 0.0)
    for number, asked in enumerate(EDITED):
        prompt = [rng.randrange(vocab) for _ in range(rng.randint(3, 30))]
        opening = Open(
            number, 1, pack_ints(prompt), len(prompt), MAX_LEN, LOOKAHEAD, Sampling(seed=5, **asked)
        )
        texts[number] = DraftSession(opening, MAX_LEN, vocab)
        scheduler.open(texts[number])
    for n in range(1, 9):
        for _ in range(3):
            scheduler.grow()
        for session in texts.values():
            session.note_arrival(session.num_sent)
            scheduler.advance(session, n, [rng.randrange(vocab) for _ in range(rng.randint(1, 4))])
    assert children.num_changed > 100
    assert children.num_checked > children.num_changed, "no row was left as it is"
