"""Prompts that are read beside a step's rows: shared beginnings are read once, long ones do not starve."""

import pytest

from benchmarks.ruled import BLOCK, CONTEXT, NUM_BLOCKS, RuledModel, device_steps, host_steps, shape_of
from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server.scheduler import DraftScheduler, HostLimits
from ssd.draft.server.session import DraftSession
from ssd.kvcache.block_manager import BlockManager
from tests.runtime.recording import RunAgain
from tests.still_clock import still

CHUNK, TEXT = 128, 2000
FORMS = pytest.mark.parametrize("on_device", [False, True], ids=["arrays", "tensors"])


class Bench:
    def __init__(self, *, on_device: bool = False, num_blocks: int = NUM_BLOCKS, chunk: int = CHUNK) -> None:
        shape, model = shape_of(16, 8, width=8, slots=32), RuledModel()
        steps = device_steps(model, shape, RunAgain()) if on_device else host_steps(model, shape)
        blocks, limits = BlockManager(num_blocks, BLOCK), HostLimits(chunk, CONTEXT)
        self.scheduler = DraftScheduler(steps, blocks, limits, clock=still)
        self.num_rows = self.num_steps = 0
        self._num_opened = 0

    def open(self, tokens: list[int], *, tenant: str = "") -> DraftSession:
        opening = Open(self._num_opened, 1, pack_ints(tokens), len(tokens), CONTEXT, 4, Sampling(seed=1))
        self._num_opened += 1
        session = DraftSession(opening, CONTEXT, tenant=tenant)
        self.scheduler.open(session)
        return session

    def num_computed(self, session: DraftSession) -> int:
        return int(self.scheduler.ledger.num_computed[session.row])

    def step(self) -> int:
        _frames, num_rows = self.scheduler.grow()
        self.scheduler.check_integrity()
        self.num_steps += 1
        self.num_rows += num_rows
        return num_rows

    def read(self, sessions: list[DraftSession]) -> int:
        """Steps until all of these are read; returns the rows that they took."""
        before = self.num_rows
        while any(self.num_computed(each) < len(each.tokens) for each in sessions):
            assert self.step() or self.scheduler.is_growing, "nothing is done, though texts are unread"
        return self.num_rows - before


def prompt(seed: int, length: int = TEXT) -> list[int]:
    return [2 + (seed * 97 + place * place * 13 + place // 7) % 398 for place in range(length)]


@FORMS
@pytest.mark.parametrize("chunk", [CHUNK, 4 * TEXT])
def test_texts_that_begin_alike_and_open_together_are_read_once(on_device: bool, chunk: int) -> None:
    alone = Bench(on_device=on_device, chunk=chunk)
    one = alone.read([alone.open(prompt(0))])
    bench = Bench(on_device=on_device, chunk=chunk)
    rows = bench.read([bench.open(prompt(0)) for _ in range(16)])
    assert one >= TEXT
    assert rows <= 1.2 * one


def test_texts_are_read_apart_from_where_they_part() -> None:
    bench = Bench()
    texts = [[*prompt(0, 1000), *prompt(seed, 200)] for seed in range(1, 4)]
    assert bench.read([bench.open(each) for each in texts]) < 1.1 * (1000 + 3 * 200)


def test_who_waits_for_a_text_that_is_gone_reads_on_by_itself() -> None:
    bench = Bench()
    first, second = bench.open(prompt(0)), bench.open(prompt(0))
    for _ in range(5):
        bench.step()
    assert bench.num_computed(second) < bench.num_computed(first)
    bench.scheduler.close(first)
    rows = bench.read([second])
    assert rows <= TEXT - 5 * CHUNK + BLOCK


def test_tenants_share_no_prefix() -> None:
    bench = Bench()
    rows = bench.read([bench.open(prompt(0, 600), tenant=name) for name in "ab"])
    assert rows >= 2 * 600


@pytest.mark.parametrize("tenant", ["", "another"])
def test_a_long_prompt_is_read_while_short_ones_keep_coming(tenant: str) -> None:
    bench, length = Bench(), 3000
    long = bench.open(prompt(0, length))
    short = list[DraftSession]()
    while bench.num_computed(long) < length - 1:
        # Two prompts a step that alone would fill it, and of which no two begin alike.
        seeds = (2 * bench.num_steps + 1, 2 * bench.num_steps + 2)
        short += [bench.open(prompt(seed, CHUNK), tenant=tenant) for seed in seeds]
        bench.step()
        while len(short) > 12:
            bench.scheduler.close(short.pop(0))
        assert bench.num_steps <= 4 * length / CHUNK, f"{bench.num_computed(long)} tokens were read"


def test_nobody_goes_for_a_text_that_would_not_fit_anyway() -> None:
    bench = Bench(num_blocks=32)
    for seed in range(3):
        bench.open(prompt(seed, 10 * BLOCK), tenant="a")
    admission = bench.scheduler.admission
    assert admission.for_blocks("b", prompt(9, 40 * BLOCK)) is None
    assert admission.for_blocks("b", prompt(9, 10 * BLOCK)) is not None
