"""Captured steps of a draft: a replay is the work itself, bit for bit, and asks nothing of the host."""

import gc
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ssd.attention.paged import PagedBackend
from ssd.config import DraftConfig
from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server import main as program
from ssd.draft.server.main import build_scheduler, shape_for
from ssd.draft.server.scheduler import DraftScheduler, HostLimits
from ssd.draft.server.session import DraftSession
from ssd.draft.tree.children import FixedChildren, SamplingNeeds
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.gpu import CapturedChildren, CapturedForest, CapturedModel
from ssd.draft.tree.model import TensorsModel
from ssd.kvcache.block_manager import BlockManager
from ssd.runtime.capture import Capture, CudaGraphs, Replay, Work
from ssd.runtime.loading import LoadedModel, load_model
from ssd.selftest.recording import Recording, RunAgain, Tape
from tests.draft.tree.far_arrays import FarArrays
from tests.draft.tree.real import BLOCK, CHUNK, LOOKAHEAD, MAX_LEN, load, real_shape, words
from tests.runtime.stand_in import StandInDevice
from tests.still_clock import still

GREEDY = Sampling(seed=1, end_ids=[1])
WARM = Sampling(seed=2, temperature=0.8, top_p=0.9)
PLAIN = Sampling(seed=2, temperature=0.8)
MOST = {"greedy": 720, "sampled": 1080}
"""Operations of a whole step (select, forward of two layers, children, attach), and of an outcome's.

Children are there twice: with truncation, and without.
"""


class Recorder:
    """Recordings, with how many operations each has."""

    def __init__(self) -> None:
        self.tapes: list[Tape] = []

    def __call__(self, work: Work) -> Replay:
        tape = Recording()(work)
        self.tapes.append(tape)
        return tape


WAYS: dict[str, Callable[[], Capture]] = {
    "recording": Recording,
    "graphs": lambda: CudaGraphs(StandInDevice()),
}


def scheduler_of(
    draft: LoadedModel, needs: SamplingNeeds, *, lookup: int, recorder: Capture | None
) -> DraftScheduler:
    shape = real_shape(draft, lookup=lookup)
    model = TensorsModel(draft.runner.model, PagedBackend(draft.pool), draft.pool, shape, draft.runner)
    children, limits = FixedChildren(3, needs), HostLimits(prefill_chunk=CHUNK, max_model_len=MAX_LEN)
    blocks = BlockManager(draft.pool.shape.num_blocks, BLOCK)
    if recorder is None:
        return DraftScheduler(Forest(FarArrays(), shape), model, children, blocks, limits, clock=still)
    forest = CapturedForest(FarArrays(), shape, "value", recorder)
    captured = CapturedModel(model, forest, recorder)
    plain = FixedChildren(3, replace(needs, truncates=False))
    chosen = CapturedChildren(plain, children, captured, forest, recorder)
    return DraftScheduler(forest, captured, chosen, blocks, limits, clock=still)


def play(scheduler: DraftScheduler, sampling: Sampling, seed: int) -> list[tuple[bytes, bytes, bytes]]:
    """The messages of some rounds: two texts that come and go, hits, misses and prompts beside.

    Some hits are on a child that has been grown since it was told: its keys move to the text's.
    """
    rng, found, session = random.Random(seed), list[tuple[bytes, bytes, bytes]](), dict[int, DraftSession]()
    likeliest = dict[int, int]()
    """Of a text whose root has children, the first of them."""
    text = words(rng, 6)

    def begin(number: int) -> None:
        tokens = [*text, *words(rng, rng.choice([1, 30])), *text]
        opening = Open(number, 1, pack_ints(tokens), len(tokens), MAX_LEN, LOOKAHEAD, sampling)
        session[number] = DraftSession(opening, max_len=MAX_LEN)
        scheduler.open(session[number])

    begin(0)
    begin(1)
    for round_number in range(14):
        for _ in range(rng.choice([1, 1, 2])):
            frames, _num_rows = scheduler.grow()
            if frames is not None:
                said = frames.message()
                found.append((said.heads, said.nodes, said.logprobs))
                children = dict(zip(frames.new.rows.tolist(), frames.parts(), strict=True))
                for number, each in session.items():
                    each.note_arrival(each.num_sent)
                    part = children[each.row][1] if each.row in children else None
                    if part is not None and part.parents and part.parents[0] == part.root:
                        likeliest[number] = part.tokens[0]
                    if rng.random() < 0.4:
                        taken = [likeliest.pop(number, 9)]
                        scheduler.advance(each, int(scheduler.ledger.n[each.row]) + 1, taken)
        scheduler.check_integrity()
        if round_number == 7:
            scheduler.close(session.pop(0))
            likeliest.pop(0, None)
            begin(2)
    return found


@pytest.fixture(scope="module")
def draft(tiny_llama: Path) -> LoadedModel:
    return load(tiny_llama)


@pytest.mark.parametrize("sampling", [GREEDY, WARM, PLAIN], ids=["greedy", "T=0.8 top_p=0.9", "T=0.8"])
@pytest.mark.parametrize(("lookup", "way"), [(0, "recording"), (4, "recording"), (4, "graphs")])
def test_a_replay_is_the_work_itself(draft: LoadedModel, sampling: Sampling, lookup: int, way: str) -> None:
    samples = sampling.temperature > 0
    needs = SamplingNeeds(samples=samples, truncates=samples)
    told = []
    for recorder in (None, WAYS[way]()):
        draft.pool.keys.fill_(7.0)
        draft.pool.values.fill_(7.0)
        told.append(play(scheduler_of(draft, needs, lookup=lookup, recorder=recorder), sampling, seed=3))
    assert len(told[0]) > 10
    assert told[0] == told[1]


def test_what_a_step_reads_and_loads(draft: LoadedModel) -> None:
    """Of a sequence that grows: on a device each of these waits."""
    scheduler = scheduler_of(draft, SamplingNeeds(), lookup=4, recorder=RunAgain())
    session = DraftSession(Open(0, 1, pack_ints([5, 6, 7]), 3, MAX_LEN, LOOKAHEAD, GREEDY), max_len=MAX_LEN)
    scheduler.open(session)
    scheduler.grow()
    arrays: Any = scheduler._forest.xp
    num_reads, num_loads = arrays.num_reads, arrays.num_loads
    scheduler.grow()
    assert 0 < arrays.num_reads - num_reads <= 20
    assert 0 < arrays.num_loads - num_loads <= 8


def test_truncation_is_looked_at_while_a_sequence_asks_for_it(draft: LoadedModel) -> None:
    scheduler = scheduler_of(
        draft, SamplingNeeds(samples=True, truncates=True), lookup=0, recorder=RunAgain()
    )
    found = []
    for number, sampling in enumerate((PLAIN, WARM)):
        opening = Open(number, 1, pack_ints([5, 6, 7]), 3, MAX_LEN, LOOKAHEAD, sampling)
        session = DraftSession(opening, max_len=MAX_LEN)
        scheduler.open(session)
        scheduler.grow()
        found.append(scheduler._forest.truncates)
    scheduler.close(session)
    scheduler.grow()
    assert [*found, scheduler._forest.truncates] == [False, True, False]


def test_the_service_captures_its_steps_where_they_can_be(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the program builds it: the GPU's memory planned, every step a graph, and the frames are those of
    the same steps run again."""
    monkeypatch.setattr(program, "PREFILL_CHUNK", 8)
    gpu = StandInDevice(192 << 20)
    config = DraftConfig(model=str(tiny_llama), device="cpu", dtype="float32", max_num_seqs=2, width=4)

    def scheduler(loaded: LoadedModel) -> DraftScheduler:
        shape = replace(shape_for(loaded, config), ring=16, outcome=5)
        return build_scheduler(loaded, shape, config, clock=still)

    loaded = load_model(replace(config.runner, max_model_len=MAX_LEN), trial_capture=scheduler, gpu=gpu)
    assert gpu.free_bytes() > 0
    told = []
    for capture in (loaded.capture, RunAgain()):
        loaded.pool.keys.fill_(7.0)
        loaded.pool.values.fill_(7.0)
        told.append(play(scheduler(replace(loaded, capture=capture)), WARM, seed=5))
    gc.unfreeze()
    assert len(told[0]) > 10
    assert told[0] == told[1]


def test_without_kernels_a_card_computes_eagerly_and_grows_on_arrays(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A captured step would then gather all keys for all rows, for which no GPU has the memory."""
    monkeypatch.setattr(program, "PREFILL_CHUNK", 8)
    config = DraftConfig(model=str(tiny_llama), device="cpu", dtype="float32", max_num_seqs=2, width=4)
    loaded = load_model(
        replace(config.runner, max_model_len=MAX_LEN, num_blocks=64), gpu=StandInDevice(192 << 20)
    )
    assert loaded.capture is not None
    monkeypatch.setattr(program, "captured_backend", lambda *_: None)
    monkeypatch.setattr(program, "_captured", lambda *_: pytest.fail("its steps were captured"))
    shape = replace(shape_for(loaded, config), ring=16, outcome=5)
    told = []
    for capture in (loaded.capture, None):
        loaded.pool.keys.fill_(7.0)
        loaded.pool.values.fill_(7.0)
        each = replace(loaded, capture=capture)
        told.append(play(build_scheduler(each, shape, config, clock=still), WARM, seed=5))
    assert len(told[0]) > 10
    assert told[0] == told[1]


@pytest.mark.parametrize("samples", [False, True], ids=["greedy", "T=0.8 top_p=0.9"])
def test_operations_of_a_recorded_step_are_few_and_none_reads(draft: LoadedModel, samples: bool) -> None:
    """What reads a value, uploads one or has a shape of its own is refused while it is recorded."""
    recorder = Recorder()
    scheduler_of(draft, SamplingNeeds(samples=samples, truncates=samples), lookup=0, recorder=recorder)
    num_operations = sum(len(tape.operations) for tape in recorder.tapes)
    assert 100 < num_operations <= MOST["sampled" if samples else "greedy"]
