"""Captured steps of a draft: a replay is the work itself, bit for bit, and asks nothing of the host."""

import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.ruled import device_steps
from ssd.attention.paged import PagedBackend
from ssd.config import DraftConfig
from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server import main as program
from ssd.draft.server.main import build_scheduler, shape_for
from ssd.draft.server.scheduler import DraftScheduler, HostLimits
from ssd.draft.server.session import DraftSession
from ssd.draft.tree.model import TensorsModel
from ssd.kvcache.block_manager import BlockManager
from ssd.runtime.capture import Capture, CudaGraphs
from ssd.runtime.loading import LoadedModel, load_model
from tests.draft.tree.real import BLOCK, CHUNK, LOOKAHEAD, MAX_LEN, load, real_shape, words
from tests.runtime.recording import Recording, RunAgain
from tests.runtime.stand_in import StandInDevice
from tests.still_clock import still

GREEDY = Sampling(seed=1, end_ids=[1])
WARM = Sampling(seed=2, temperature=0.8, top_p=0.9)
PLAIN = Sampling(seed=2, temperature=0.8)
PENALISED = Sampling(seed=3, repetition_penalty=1.2, min_tokens=9, end_ids=[1], bad_word_ids=[[7], [8, 9]])


WAYS: dict[str, Callable[[], Capture]] = {
    "recording": Recording,
    "graphs": lambda: CudaGraphs(StandInDevice()),
}


def scheduler_of(
    draft: LoadedModel, capture: Capture, *, lookup: int = 4, depth: int = 0, buckets: Sequence[int] = ()
) -> DraftScheduler:
    shape = real_shape(draft, lookup=lookup)
    model = TensorsModel(draft.runner.model, PagedBackend(draft.pool), draft.pool, shape, draft.runner)
    steps = device_steps(model, shape, capture, depth=depth, buckets=buckets)
    # Capturing writes to scratch only, but what other tests left behind must not matter.
    draft.pool.keys.fill_(7.0)
    draft.pool.values.fill_(7.0)
    blocks, limits = BlockManager(draft.pool.shape.num_blocks, BLOCK), HostLimits(CHUNK, MAX_LEN)
    return DraftScheduler(steps, blocks, limits, clock=still)


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


SAMPLINGS = pytest.mark.parametrize(
    "sampling",
    [GREEDY, WARM, PLAIN, PENALISED],
    ids=["greedy", "T=0.8 top_p=0.9", "T=0.8", "penalties"],
)


@SAMPLINGS
@pytest.mark.parametrize(("lookup", "way"), [(0, "recording"), (4, "recording"), (4, "graphs")])
def test_a_replay_is_the_work_itself(draft: LoadedModel, sampling: Sampling, lookup: int, way: str) -> None:
    again, replayed = (
        play(scheduler_of(draft, capture, lookup=lookup), sampling, seed=3)
        for capture in (RunAgain(), WAYS[way]())
    )
    assert len(again) > 10
    assert again == replayed


@SAMPLINGS
@pytest.mark.parametrize("buckets", [(), (12, 24)], ids=["one size", "three sizes"])
def test_a_step_that_is_read_later_says_the_same(
    draft: LoadedModel, sampling: Sampling, buckets: Sequence[int]
) -> None:
    """The same outcomes before the same steps: their frames come one step later, and are no others."""
    prompts = [words(random.Random(seed), 20) for seed in (1, 2)]
    reference, told = random.Random(4), list[list[tuple[bytes, bytes, bytes]]]()
    script = [[words(reference, reference.choice([0, 0, 1, 2])) for _ in prompts] for _ in range(30)]
    for depth in (0, 1):
        scheduler = scheduler_of(draft, RunAgain(), depth=depth, buckets=buckets)
        sessions = [
            DraftSession(Open(number, 1, pack_ints(text), 20, MAX_LEN, LOOKAHEAD, sampling), max_len=MAX_LEN)
            for number, text in enumerate(prompts)
        ]
        for session in sessions:
            scheduler.open(session)
        told.append([])
        for outcomes in script:
            for session, tokens in zip(sessions, outcomes, strict=True):
                if tokens:
                    scheduler.advance(session, int(scheduler.ledger.n[session.row]) + 1, tokens)
            frames, _num_rows = scheduler.grow()
            scheduler.check_integrity()
            if frames is not None and not frames.is_empty:
                said = frames.message()
                told[-1].append((said.heads, said.nodes, said.logprobs))
        assert scheduler.is_growing == (depth > 0)
    assert len(told[0]) > 20
    assert told[1] == told[0][: len(told[1])]
    assert len(told[1]) >= len(told[0]) - 1


def test_the_service_captures_its_steps_where_they_can_be(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the program builds it: the GPU's memory planned, every step a graph, and the frames are those of
    the same steps run again."""
    monkeypatch.setattr(program, "_ROWS_TO_READ", 8)
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
