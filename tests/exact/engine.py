"""Targets of the matrix, loaded once, and the engine of a row around one of them.

Time is a counter, and a draft that works ahead takes its steps while the target computes: a row runs alike
every time.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import torch
from torch import Tensor

from ssd.attention.batch import Batch
from ssd.attention.inputs import SequenceInput
from ssd.config import RunnerConfig
from ssd.decoding import ahead, decoder, in_turns
from ssd.decoding.ahead import DraftAhead
from ssd.decoding.decoder import Decoder
from ssd.decoding.drafter import Drafter, DraftLimits
from ssd.decoding.in_turns import HOPED_RATE, DraftInTurns
from ssd.decoding.proposer import Proposer
from ssd.decoding.rows import Decided, DecodeRow
from ssd.decoding.tree_slots import TreeSlots
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import FixedSources
from ssd.draft.client.controller import Controller
from ssd.draft.client.proposals import depths_of, first_path
from ssd.draft.client.replica import LONGEST_DELAY
from ssd.draft.client.speculator import Speculator
from ssd.draft.protocol.messages import Hello
from ssd.draft.protocol.sockets import EngineSocket
from ssd.engine.core import EngineCore
from ssd.engine.grammar import Grammars
from ssd.engine.prompts import RequestFactory
from ssd.engine.scheduler import SchedulerLimits
from ssd.kvcache.block_manager import BlockManager
from ssd.models.vocabulary import common_vocabulary
from ssd.runtime.loading import LoadedModel, load_model
from ssd.runtime.runner import InFlightStep
from tests.e2e.draft_in_memory import InMemoryDraft
from tests.exact.faulty_link import WIRE_FAULTS, FaultyLink
from tests.exact.hostile import Hostile, Truths
from tests.exact.requests import TEXT
from tests.exact.rows import Row
from tests.tiny import cut_layers, write_checkpoint

T = TypeVar("T")
MAX_MODEL_LEN, BLOCK, NUM_TREES = 96, 4, 6
PLENTY = 16 * MAX_MODEL_LEN // BLOCK
FEW = 24
"""Blocks: as many tokens as one of the longest sequences has."""
BUDGETS = {"whole": 512, "chunks": 24, "unchunked": 32}
KINDS = {"float32": "padded", "bfloat16": "medium", "int8": "medium"}
"""`padded` has more tokens than the sampler takes noise for at once; `medium` shows the order of sums."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@dataclass(slots=True)
class Seen:
    """What happened: equal tokens prove nothing if a row's circumstances never came about."""

    steps: int = 0
    most_rows: int = 0
    computed: int = 0
    """Tokens, without drafted ones."""
    parts: int = 0
    """Chunks of prompts that decided no token."""
    drafted: int = 0
    accepted: int = 0
    trees: int = 0
    off_first_path: int = 0
    """Trees of which another path than the first was taken."""
    idle: int = 0
    """Places of steps that no sequence took although one waited."""
    num_faults: int = 0
    """Steps in which the draft was dead, halted or late, and frames that were lost, moved or changed."""
    frames_before: int = 0
    """Frames of the draft before it is killed or halted."""


class Watched(Decoder):
    """Counts what is verified, and refuses steps that break a limit."""

    def __init__(self, seen: Seen, row: Row, *parts: Any) -> None:
        super().__init__(*parts)
        self._seen, self._row = seen, row
        self.num_live: Callable[[], int] = lambda: 0

    def launch(self, rows: Sequence[DecodeRow]) -> None:
        seen, num_tokens = self._seen, sum(len(row.tokens) for row in rows)
        assert 0 < len(rows) <= self._row.batch
        assert num_tokens <= BUDGETS[self._row.prompts] or self._row.prompts == "unchunked"
        assert len({row.seq_id for row in rows}) == len(rows)
        assert sum(row.parents is not None for row in rows) <= self.num_trees
        assert all(row.generated or not row.num_drafted for row in rows)
        assert all(_fits_its_text(row) for row in rows)
        seen.steps += 1
        seen.most_rows = max(seen.most_rows, len(rows))
        seen.idle += min(self._row.batch, self.num_live()) - len(rows)
        seen.computed += num_tokens - sum(row.num_drafted for row in rows)
        seen.parts += sum(row.sampling is None for row in rows)
        super().launch(rows)

    def collect(self, away: float = 0.0) -> list[Decided]:
        rows = self._in_flight[0]
        decided = super().collect(away)
        for row, each in zip(rows, decided, strict=True):
            self._seen.drafted += row.num_drafted
            self._seen.accepted += max(0, len(each.tokens) - 1)
            if row.parents is not None:
                first = first_path(range(row.num_drafted), row.parents)
                self._seen.trees += 1
                self._seen.off_first_path += each.branch != first[: len(each.branch)]
        return decided


def _fits_its_text(row: DecodeRow) -> bool:
    """The target adds the last token itself, so a speculation ends before."""
    if not row.num_drafted or row.sampling is None or row.sampling.params.max_tokens is None:
        return True
    depth = max(depths_of(row.parents, row.num_drafted))
    return len(row.sampling.output) + depth + 1 <= row.sampling.params.max_tokens


@dataclass
class Target:
    """The row's target. While it computes the draft takes steps, and things happen to it."""

    loaded: LoadedModel
    row: Row
    seen: Seen
    clock: Clock
    draft: InMemoryDraft | None = None
    client: DraftClient | None = None
    links: list[FaultyLink] = field(default_factory=list)
    turns: int = 8
    """How often a draft takes its turn during a step."""
    num_uncaptured = 0

    def __post_init__(self) -> None:
        self._random = random.Random(f"target {self.row.seed}")
        self._when = self._random.randint(6, 9)
        self._num_steps = 0

    @property
    def is_async(self) -> bool:
        return self.row.async_forward

    def batch(self, rows: Sequence[SequenceInput]) -> Batch:
        return self.loaded.runner.batch(rows)

    def launch(self, batch: Batch, finish: Callable[[Tensor], T]) -> InFlightStep[T]:
        self._let_time_pass()
        flight = self.loaded.runner.launch(batch, finish)
        return Later(flight) if self.row.async_forward else flight

    def wrap(self, link: EngineSocket) -> EngineSocket:
        if self.row.draft_fault not in WIRE_FAULTS:
            return link
        # Later connections are whole: a draft that lies for ever is of no use.
        chance = (0.4, 0.2)[len(self.links)] if len(self.links) < 2 else 0.0
        kind = "nodes" if self.row.draft_fault == "lie" else self._random.choice(("nodes", "outcome"))
        self.links.append(FaultyLink(link, self.row.draft_fault, kind, chance, self.row.seed))
        return self.links[-1]

    def _let_time_pass(self) -> None:
        draft, client = self.draft, self.client
        if draft is None or client is None:
            return
        self._num_steps += 1
        self.clock.now += 0.02
        if self._num_steps == self._when:
            self.seen.frames_before = client.stats.num_frames
            if self.row.draft_fault == "killed":
                draft.kill()
        if self.row.draft_fault in ("killed", "frozen") and self._num_steps >= self._when:
            # Until it is found to be silent, or looked for again.
            self.clock.now += 0.2
            draft.is_stopped = self.row.draft_fault == "frozen" and self._num_steps < self._when + 8
            self.seen.num_faults += 1
        client.pool.tend()
        num_turns = self._random.choice((0, 0, 0, 1)) if self.row.draft_fault == "late" else self.turns
        self.seen.num_faults += not num_turns
        draft.pump(num_turns)


@dataclass
class Later(InFlightStep[T]):
    """Says a few times that it is not done yet."""

    flight: InFlightStep[T]
    num_looks: int = 0

    def is_done(self) -> bool:
        self.num_looks += 1
        return self.num_looks > 3

    def collect(self) -> T:
        return self.flight.collect()


class TargetWithDrafts:
    """A target of some weights with its drafts, all in one folder."""

    def __init__(self, weights: str, folder: Path, target: Path | None = None) -> None:
        """`target`: a model that is there; it is its own draft."""
        self.weights = weights
        self._turns = 8 if target is None else 2
        if target is not None:
            self.folders = {"good": target}
        else:
            target = write_checkpoint(KINDS[weights], folder / "target")
            self.folders = {"good": target, "layers": cut_layers(target, 2, folder / "layers")}
            self.folders["random"] = write_checkpoint("llama3", folder / "random", seed=9)
        self.loaded = load_model(self._config("good"))
        self._drafts: dict[str, LoadedModel] = {}
        checkpoint = self.loaded.checkpoint
        self.tokenizer: Any = checkpoint.tokenizer()
        self.end_ids = checkpoint.end_ids(self.tokenizer)
        self.vocab_size = checkpoint.config.vocab_size
        self.grammars = Grammars(self.tokenizer, self.end_ids, self.vocab_size)
        self.ids: list[int] = self.tokenizer(TEXT * 4).input_ids
        self.factory = RequestFactory(
            self.tokenizer, self.end_ids, self.vocab_size, random.Random(0), self.grammars, MAX_MODEL_LEN
        )

    def core(self, row: Row, truths: Truths) -> "RowEngine":
        seen, clock = Seen(), Clock()
        target = Target(self.loaded, row, seen, clock, turns=self._turns)
        proposer = self._proposer(row, target, truths)
        trees = TreeSlots.of(self.loaded.pool)
        trees = replace(trees, starts=trees.starts if row.tree else ())
        watched = Watched(seen, row, target, proposer, trees)
        limits = SchedulerLimits(
            max_num_seqs=row.batch,
            max_num_batched_tokens=max(BUDGETS[row.prompts], row.batch),
            max_model_len=MAX_MODEL_LEN,
            enable_chunked_prefill=row.prompts != "unchunked",
            cache_generated=False,
        )
        blocks = BlockManager(FEW if row.room == "few" else PLENTY, BLOCK, enable_prefix_caching=row.cache)
        core = EngineCore(watched, blocks, limits, self.tokenizer, clock, grammars=self.grammars.constraints)
        watched.num_live = lambda: core.num_running + core.num_waiting
        if row.fair_sharing:
            core.share_fairly()
        return RowEngine(core, blocks, target, proposer)

    def _config(self, draft: str, *, deterministic: bool = True) -> RunnerConfig:
        return RunnerConfig(
            model=str(self.folders[draft]),
            device="cpu",
            block_size=BLOCK,
            num_blocks=PLENTY,
            num_trees=NUM_TREES,
            max_model_len=MAX_MODEL_LEN,
            deterministic=deterministic,
            **self._number_format,
        )

    @property
    def _number_format(self) -> dict[str, Any]:
        dtype = "float32" if self.weights == "float32" else "bfloat16"
        return {"dtype": dtype, "precision": "int8" if self.weights == "int8" else "model"}

    def _proposer(self, row: Row, target: Target, truths: Truths) -> Proposer:
        if row.mode == "ar":
            return Proposer()
        if row.draft == "hostile":
            return Hostile(truths, self.vocab_size, tree=row.tree)
        if row.mode == "sd":
            return self._in_turns(row)
        hello = Hello.of(
            self.tokenizer, vocab_size=self.vocab_size, name="target", max_model_len=MAX_MODEL_LEN
        )
        folder = self.folders[row.draft]
        draft = InMemoryDraft(folder, hello, target.clock, target.wrap, width=8, **self._number_format)
        client = DraftClient(FixedSources(draft), lookahead=row.lookahead, clock=target.clock)
        target.draft, target.client = draft, client
        num_trees = NUM_TREES if row.tree else 0
        return DraftAhead(
            Speculator(client, lookahead=row.lookahead, num_trees=num_trees, clock=target.clock)
        )

    def _in_turns(self, row: Row) -> DraftInTurns:
        if row.draft not in self._drafts:
            self._drafts[row.draft] = load_model(self._config(row.draft, deterministic=False))
        draft = self._drafts[row.draft]
        common = common_vocabulary(self.loaded.checkpoint, draft.checkpoint)
        limits = DraftLimits(row.lookahead, draft.max_model_len, 256, common)
        drafter = Drafter(draft.runner, BlockManager(PLENTY, BLOCK, enable_prefix_caching=False), limits)
        controller = Controller(guess_rate=HOPED_RATE) if row.tree or row.seed % 2 else None
        return DraftInTurns(drafter, controller, num_trees=NUM_TREES if row.tree else 0)


@dataclass
class RowEngine:
    core: EngineCore
    blocks: BlockManager
    target: Target
    proposer: Proposer

    def check_nothing_is_left(self) -> None:
        """Once all requests have ended, neither side holds anything of them."""
        self.core.check_integrity()
        assert self.blocks.usage == 0
        self.target.seen.num_faults += sum(link.num_struck for link in self.target.links)
        drafter = getattr(self.proposer, "_drafter", None)
        if drafter is not None:
            drafter.check_integrity()
            assert drafter._blocks.usage == 0
        if self.target.draft is not None:
            self._check_draft(self.target.draft)

    def _check_draft(self, draft: InMemoryDraft) -> None:
        client, clock = self.target.client, self.target.clock
        assert client is not None
        client.check_integrity()
        draft.is_stopped = False
        for link in self.target.links:
            link.mend()
        # The next greeting makes up for a CLOSE that was lost.
        client.pool.lose("the row is over")
        clock.now += LONGEST_DELAY
        for _ in range(6):
            client.pool.tend()
            client.pool.read()
            draft.pump(2)
        if draft.service is not None:
            draft.service.check_integrity()
            assert draft.service._scheduler.num_sessions == 0
            assert draft.service._scheduler.kv_usage == 0


@contextmanager
def counted_time(clock: Clock) -> Iterator[None]:
    """What decoders measure is as long each time."""
    counted = SimpleNamespace(monotonic=clock, sleep=lambda seconds: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with (
        mock.patch.object(decoder, "time", counted),
        mock.patch.object(in_turns, "time", counted),
        mock.patch.object(ahead, "time", counted),
    ):
        yield
    torch.set_num_threads(threads)
