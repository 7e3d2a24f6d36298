"""A forest grown by a real, tiny model, whose every child is compared with a forward over the whole text.

Texts of nodes are put together from frames alone, as an engine would. `Bench` knows nothing of what is done
with it.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.ruled import device_steps
from ssd.attention.inputs import PlainInput
from ssd.attention.paged import PagedBackend
from ssd.config import RunnerConfig
from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server.frames import FrameBatch
from ssd.draft.server.host_steps import HostSteps
from ssd.draft.server.scheduler import DraftScheduler, HostLimits
from ssd.draft.server.session import DraftSession
from ssd.draft.tree.arrays import NumpyArrays
from ssd.draft.tree.children import LooseChildren, likely_children
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.model import ArraysModel, TensorsModel
from ssd.draft.tree.tables import Shape
from ssd.kvcache.block_manager import BlockManager
from ssd.runtime.loading import LoadedModel, load_model
from ssd.runtime.runner import forward
from ssd.sampling import History, SamplingRow
from tests.runtime.recording import RunAgain
from tests.still_clock import still

BLOCK, MAX_LEN, VOCAB, END, LOOKAHEAD, CHUNK = 4, 200, 512, 1, 4, 16
Text = tuple[int, ...]


def _sampling_row(session: DraftSession, text: Text) -> SamplingRow:
    """How the token after a text of this session is sampled."""
    sampling, num_prompt = session.opening.sampling, session.opening.num_prompt
    return SamplingRow(
        params=session.params,
        seed=sampling.seed,
        position=len(text),
        prompt=text[:num_prompt],
        output=History([*text], num_prompt),
        end_ids=tuple(sampling.end_ids),
        bad_word_ids=tuple(map(tuple, sampling.bad_word_ids)),
    )


def load(folder: Path) -> LoadedModel:
    return load_model(
        RunnerConfig(
            model=str(folder),
            dtype="float32",
            device="cpu",
            max_model_len=MAX_LEN,
            num_blocks=160,
            num_trees=8,
            block_size=BLOCK,
        )
    )


def real_shape(
    draft: LoadedModel, *, width: int = 6, lookup: int = 0, slots: int = 20, children: int = 3
) -> Shape:
    return Shape(
        draft.pool.shape.num_trees,
        width,
        rows=width + 40,
        lookup=lookup,
        slots=slots,
        children=children,
        outcome=5,
        ring=16,
        block=BLOCK,
        blocks=MAX_LEN // BLOCK,
        first_tree_slot=draft.pool.shape.tree_start(-1),
    )


def real_scheduler(
    draft: LoadedModel,
    blocks: BlockManager,
    shape: Shape | None = None,
    clock: Callable[[], float] = still,
) -> DraftScheduler:
    """On arrays, as the service has it on a CPU."""
    shape = shape or real_shape(draft)
    limits = HostLimits(prefill_chunk=CHUNK, max_model_len=MAX_LEN)
    model, children = ArraysModel(draft.runner, draft.pool, shape), LooseChildren(shape.children)
    steps = HostSteps(Forest(NumpyArrays(), shape), model, children)
    return DraftScheduler(steps, blocks, limits, clock=clock)


def real_tensors(draft: LoadedModel, blocks: BlockManager, shape: Shape) -> DraftScheduler:
    limits = HostLimits(prefill_chunk=CHUNK, max_model_len=MAX_LEN)
    model = TensorsModel(draft.runner.model, PagedBackend(draft.pool), draft.pool, shape, draft.runner)
    steps = device_steps(model, shape, RunAgain(), depth=0, buckets=())
    return DraftScheduler(steps, blocks, limits, clock=still)


class Reference:
    """The same model with a pool of its own, over a whole text from scratch."""

    def __init__(self, folder: Path) -> None:
        self._model = load(folder)

    def logits(self, texts: Sequence[Sequence[int]]) -> Tensor:
        runner, blocks = self._model.runner, range(self._model.pool.shape.num_blocks)
        rows = [PlainInput(text, 0, blocks, 1, generated=False) for text in texts]
        return torch.cat([forward(runner, [row]) for row in rows])


class Bench:
    def __init__(
        self,
        draft: LoadedModel,
        reference: Reference,
        shape: Shape | None = None,
        *,
        num_blocks: int = 0,
        on_tensors: bool = False,
    ) -> None:
        # What other tests left behind must not matter.
        draft.pool.keys.fill_(7.0)
        draft.pool.values.fill_(7.0)
        self.reference, self.shape = reference, shape or real_shape(draft)
        self.blocks = BlockManager(num_blocks or draft.pool.shape.num_blocks, BLOCK)
        make = real_tensors if on_tensors else real_scheduler
        self.scheduler = make(draft, self.blocks, self.shape)
        self.forest = self.scheduler._steps.forest
        self.sessions: dict[int, DraftSession] = {}
        self.texts: dict[tuple[int, int], Text] = {}
        """Of each node, by session and id: the text up to it."""
        self.num_compared = 0

    def open(
        self,
        session_id: int,
        tokens: Sequence[int],
        sampling: Sampling | None = None,
        max_len: int = MAX_LEN,
        *,
        lookahead: int = LOOKAHEAD,
    ) -> DraftSession:
        said = sampling or Sampling(seed=1)
        opening = Open(session_id, 1, pack_ints(tokens), len(tokens), max_len, lookahead, said)
        session = DraftSession(opening, max_len=self.scheduler.max_model_len)
        self.scheduler.open(session)
        self.sessions[session_id] = session
        return session

    def close(self) -> None:
        """At the end every block is free again."""
        for session in self.sessions.values():
            self.scheduler.close(session)
            self.scheduler.check_integrity()
        assert self.blocks.usage == 0

    def step(self, *, is_heard: bool = True) -> tuple[FrameBatch | None, int]:
        frames, num_rows = self.scheduler.grow()
        self.scheduler.check_integrity()
        if frames is not None:
            self.compare(frames)
            for row in frames.new.rows.tolist() if is_heard else ():
                session = self.scheduler._sessions[row]
                session.note_arrival(session.num_sent)
        return frames, num_rows

    def outcome(self, session_id: int, tokens: Sequence[int]) -> None:
        session = self.sessions[session_id]
        self.scheduler.advance(session, int(self.scheduler.ledger.n[session.row]) + 1, tokens)

    def compare(self, frames: FrameBatch) -> None:
        for row, part in frames.parts():
            session = self.scheduler._sessions[row]
            session_id = session.seq
            root = tuple(session.tokens)
            assert self.texts.setdefault((session_id, part.root), root) == root
            for node, parent, token in zip(part.ids, part.parents, part.tokens, strict=True):
                self.texts[session_id, node] = (*self.texts[session_id, parent], token)
            raws = self.raws(row)
            for parent in dict.fromkeys(part.parents):
                mine = [i for i, each in enumerate(part.parents) if each == parent]
                found = {part.tokens[i]: raws[part.ids[i]] for i in mine}
                self._compare_family(session, self.texts[session_id, parent], found)

    def raws(self, row: int) -> dict[int, float]:
        """By id: what the model said of it."""
        tables, to_host = self.forest.tables, self.forest.xp.to_host
        first, tokens = to_host(tables.first_id)[row], to_host(tables.child_token)[row]
        raws, used = to_host(tables.child_raw)[row], to_host(tables.is_used)[row]
        return {
            int(first[family]) + rank: float(raws[family, rank])
            for family in used.nonzero()[0]
            for rank in range(self.shape.children)
            if tokens[family, rank] >= 0
        }

    def _compare_family(self, session: DraftSession, text: Text, found: dict[int, float]) -> None:
        row = _sampling_row(session, text)
        count = self.shape.children
        [wanted] = likely_children(self.reference.logits([text]), [row], count + 5)
        assert len(found) == min(count, len(wanted.tokens))
        assert list(found.values()) == pytest.approx(wanted.raws[: len(found)], abs=1e-4)
        # By token, not by place: equal scores may change places.
        said = dict(zip(wanted.tokens.tolist(), wanted.raws.tolist(), strict=True))
        for token, raw in found.items():
            assert said[token] == pytest.approx(raw, abs=1e-4)
        self.num_compared += 1

    # What is asked of the tables.

    def num_grown(self, session_id: int) -> int:
        used = self.forest.xp.to_host(self.forest.tables.is_used)[self.sessions[session_id].row]
        return int(used[: self.shape.slots].sum())

    def num_computed(self, session_id: int) -> int:
        return int(self.forest.tables.num_computed[self.sessions[session_id].row])

    def paths(self, session_id: int) -> list[Text]:
        """From the root to each known node of its tree."""
        session = self.sessions[session_id]
        root, length = tuple(session.tokens), len(session.tokens)
        known = self.raws(session.row)
        texts = [self.texts[session_id, each] for each in known if (session_id, each) in self.texts]
        return [text[length:] for text in texts if text[:length] == root and len(text) > length]


def words(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(2, VOCAB) for _ in range(count)]


def some_outcome(rng: random.Random, bench: Bench, session_id: int) -> list[int]:
    """A node anywhere in the tree, sometimes with tokens behind it that it does not know."""
    kind = rng.choice(["deep", "deep", "any", "any", "miss", "long"])
    paths = sorted(bench.paths(session_id))
    if kind == "miss" or not paths:
        return words(rng, rng.choice([1, 1, 3]))
    deepest = max(map(len, paths))
    chosen = rng.choice([each for each in paths if kind != "deep" or len(each) >= deepest - 1])
    return [*chosen, *(words(rng, rng.choice([1, 2, 5])) if kind == "long" else [])]
