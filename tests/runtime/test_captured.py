"""Steps that are recorded and replayed do what they did before, for any rows in any bucket."""

import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd.attention.inputs import Branches, PlainInput
from ssd.attention.paged import PagedBackend
from ssd.attention.sdpa import SdpaBackend
from ssd.config.runner import RunnerConfig
from ssd.runtime import captured, static
from ssd.runtime.buckets import Buckets
from ssd.runtime.capture import Capture, CudaGraphs, Replay, Work
from ssd.runtime.captured import CapturedRunner
from ssd.runtime.eager import EagerRunner
from ssd.runtime.layout import Tiling
from ssd.runtime.loading import LoadedModel, load_model
from ssd.runtime.runner import forward
from ssd.sampling import CoupledDecision, Draws, Truncation
from tests.runtime.recording import CaptureError, Recording, RunAgain
from tests.runtime.stand_in import StandInDevice

BLOCK, NUM_BLOCKS, TABLE = 4, 96, 12
SIZES, TILE = (16, 32, 48), 16


@pytest.fixture(scope="module")
def loaded(tiny_llama: Path) -> LoadedModel:
    return load_model(
        RunnerConfig(
            model=str(tiny_llama),
            device="cpu",
            dtype="float32",
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK,
            num_trees=4,
            max_model_len=BLOCK * TABLE,
        )
    )


def graphs() -> Capture:
    return CudaGraphs(StandInDevice())


WAYS: dict[str, Callable[[], Capture]] = {"again": RunAgain, "recording": Recording, "graphs": graphs}
REPLAYED = pytest.mark.parametrize("way", ["recording", "graphs"])


def runner_of(
    loaded: LoadedModel, way: str = "recording", sizes: Sequence[int] = SIZES, tile: int | None = TILE
) -> CapturedRunner:
    assert isinstance(loaded.runner, EagerRunner)
    buckets = Buckets(TABLE, sizes, tile=tile)
    return CapturedRunner(loaded.runner, PagedBackend(loaded.pool), loaded.pool, buckets, WAYS[way]())


def some_rows(rng: random.Random, shape: Any) -> list[PlainInput]:
    """Texts that are decoded, verified and read in chunks, and trees, in blocks of their own."""
    rows, free = [], rng.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    for tree in range(rng.randint(1, 4)):
        blocks = [free.pop() for _ in range(TABLE)]
        count = rng.choice([1, 1, 3, 9])
        tokens = [rng.randrange(2, 300) for _ in range(count)]
        if rng.random() < 0.5:
            start = rng.randint(0, BLOCK * TABLE - count)
            rows.append(PlainInput(tokens, start, blocks, rng.randint(1, count), generated=True))
            continue
        nodes = rng.sample(range(128), count)
        paths = [sum(1 << node for node in nodes[: place + 1]) for place in range(count)]
        prefix = rng.randint(1, 30)
        branches = Branches(range(prefix, prefix + count), prefix, shape.tree_start(tree), nodes, paths)
        rows.append(PlainInput(tokens, 0, blocks, count, generated=True, branches=branches))
    return rows


def rows_of_all_sizes(rng: random.Random, shape: Any) -> list[list[PlainInput]]:
    """Six steps, the largest first, of more than one bucket."""
    steps = sorted((some_rows(rng, shape) for _ in range(48)), key=lambda rows: -num_rows(rows))[::8]
    assert len({num_rows(rows) > SIZES[0] for rows in steps}) == 2
    return steps


def num_rows(rows: Sequence[PlainInput]) -> int:
    return sum(len(row.tokens) for row in rows)


def some_decision(rng: random.Random, count: int) -> CoupledDecision:
    kind = rng.choice(["greedy", "sampled", "truncated"])
    if kind == "greedy":
        return CoupledDecision(None)
    heats = torch.tensor([rng.choice([0.0, 0.8, 1.3]) for _ in range(count)])
    seeds, positions = (torch.tensor([rng.randrange(1 << 30) for _ in range(count)]) for _ in range(2))
    truncation = Truncation(
        torch.full((count,), -torch.inf, dtype=torch.float64),
        torch.tensor([rng.choice([0, 5]) for _ in range(count)]),
        torch.full((count,), 0.9, dtype=torch.float64),
    )
    return CoupledDecision(Draws(seeds, positions, heats, truncation if kind == "truncated" else None))


class Lives:
    """The same steps in several ways, each from the same memory."""

    def __init__(self, loaded: LoadedModel, seed: int) -> None:
        self._pool = loaded.pool
        generator = torch.Generator().manual_seed(seed)
        self._before = [
            torch.randn(t.shape, generator=generator) for t in (loaded.pool.keys, loaded.pool.values)
        ]

    def run(
        self, runner: Any, steps: Sequence[tuple[list[PlainInput], Callable[[Tensor], Tensor]]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """What was decided, and all keys and values that can be seen at the end."""
        for place, content in zip((self._pool.keys, self._pool.values), self._before, strict=True):
            place.copy_(content)
        decided = [runner.launch(runner.batch(rows), finish).collect() for rows, finish in steps]
        scratch = self._pool.scratch_slot
        memory = [
            torch.cat((each[:, :, :scratch], each[:, :, self._pool.shape.tree_start(0) :]), 2).clone()
            for each in (self._pool.keys, self._pool.values)
        ]
        return decided, memory


def same(a: tuple[list[Tensor], list[Tensor]], b: tuple[list[Tensor], list[Tensor]]) -> bool:
    return all(
        torch.equal(x, y)
        for mine, others in zip(a, b, strict=True)
        for x, y in zip(mine, others, strict=True)
    )


def steps_of(loaded: LoadedModel, seed: int, count: int = 12) -> list[Any]:
    rng = random.Random(seed)
    steps = []
    for _ in range(count):
        rows = some_rows(rng, loaded.pool.shape)
        finish = rng.choice([some_decision(rng, sum(row.num_logits for row in rows)), lambda logits: logits])
        steps.append((rows, finish))
    return steps


@REPLAYED
@pytest.mark.parametrize("seed", range(3))
def test_a_replay_equals_the_work_itself_in_any_bucket(loaded: LoadedModel, seed: int, way: str) -> None:
    """Bit for bit, tokens, logits and memory: replayed, run again, and in a larger bucket than needed."""
    lives, steps = Lives(loaded, seed), steps_of(loaded, seed)
    replayed = lives.run(runner_of(loaded, way), steps)
    assert same(replayed, lives.run(runner_of(loaded, "again"), steps))
    assert same(replayed, lives.run(runner_of(loaded, way, SIZES[2:]), steps))


@pytest.mark.parametrize("way", WAYS)
def test_it_computes_what_the_eager_runner_computes(loaded: LoadedModel, way: str) -> None:
    runner = runner_of(loaded, way)
    for rows in rows_of_all_sizes(random.Random(0), loaded.pool.shape):
        torch.testing.assert_close(forward(runner, rows), forward(loaded.runner, rows), rtol=1e-4, atol=1e-4)
    assert runner.num_replayed.total() == 6
    assert not runner.num_eager


@REPLAYED
def test_what_is_decided_follows_from_the_logits_and_stays(loaded: LoadedModel, way: str) -> None:
    """Of every kind; and what a step gave is not changed by the next."""
    rng, runner, found = random.Random(5), runner_of(loaded, way), list[tuple[Tensor, Tensor, Any]]()
    for rows in rows_of_all_sizes(rng, loaded.pool.shape):
        decision = some_decision(rng, sum(row.num_logits for row in rows))
        logits, tokens = (
            runner.launch(runner.batch(rows), finish).collect() for finish in (lambda given: given, decision)
        )
        found.append((logits, tokens, decision))
    assert {kind for _size, kind in runner.num_replayed} == set(captured.KINDS)
    for logits, tokens, decision in found:
        assert torch.equal(decision(logits), tokens)


@REPLAYED
def test_a_step_writes_the_slots_of_its_rows_alone(loaded: LoadedModel, way: str) -> None:
    """Also behind a larger one, of whose rows some are still there."""
    rng, runner = random.Random(6), runner_of(loaded, way)
    for rows in rows_of_all_sizes(rng, loaded.pool.shape):
        for pool in (loaded.pool.keys, loaded.pool.values):
            pool.fill_(7.0)
        batch = runner.batch(rows)
        slots = {*batch.slots.tolist(), loaded.pool.scratch_slot}
        mine = {slot for span in batch.spans for slot in batch.slots[span.first : span.last].tolist()}
        assert slots - mine == {loaded.pool.scratch_slot}
        runner.launch(batch, lambda logits: logits).collect()
        changed = (loaded.pool.keys != 7.0).any(-1).any(1).any(0).nonzero().flatten().tolist()
        assert set(changed) == slots


@pytest.mark.parametrize("way", WAYS)
def test_what_no_bucket_holds_is_computed_eagerly_said_once_and_counted(
    loaded: LoadedModel, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="ssd.runtime.captured")
    runner = runner_of(loaded, way, (16,))
    row = PlainInput([5] * 17, 0, range(TABLE), 2, generated=True)
    for _ in range(3):
        assert torch.equal(forward(runner, [row]), forward(loaded.runner, [row]))
    [reason] = runner.num_eager
    assert "more than 16 rows" in reason
    assert runner.num_eager[reason] == runner.num_uncaptured == 3
    assert [record.message for record in caplog.records] == [f"{reason}: such steps run eagerly"]
    assert not runner.num_replayed


def test_where_tiles_are_fixed_prompts_have_their_own_and_are_not_replayed(loaded: LoadedModel) -> None:
    """A prompt of as many rows as a bucket has is no step of that bucket."""
    tiled = EagerRunner(
        loaded.runner.model,
        SdpaBackend(loaded.pool, loaded.runner.model.config.num_heads, deterministic=True),
        loaded.pool,
        tiling=Tiling(TILE, 32),
    )
    buckets = Buckets(TABLE, SIZES, tile=TILE)
    runner = CapturedRunner(tiled, PagedBackend(loaded.pool), loaded.pool, buckets, Recording())
    row = PlainInput(range(2, 34), 0, range(TABLE), 32, generated=False)
    assert runner.batch([row]).num_rows == 32
    assert torch.equal(forward(runner, [row]), forward(tiled, [row]))
    assert list(runner.num_eager.values()) == [1]


@REPLAYED
def test_a_step_that_cannot_be_captured_is_computed_all_the_same(
    loaded: LoadedModel, way: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the driver refuses: one bucket is missing, and said by name."""
    capture, num_calls = WAYS[way](), 0

    def refusing(work: Work) -> Replay:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            raise RuntimeError("out of memory")
        return capture(work)

    monkeypatch.setitem(WAYS, "refusing", lambda: refusing)
    runner = runner_of(loaded, "refusing", (16,))
    assert "a sampled step of 16 rows was not captured: out of memory" in caplog.text
    [row] = [PlainInput([5], 3, range(TABLE), 1, generated=True)]
    draws = Draws(torch.tensor([3]), torch.tensor([4]), torch.tensor([0.9]))
    runner.launch(runner.batch([row]), CoupledDecision(draws)).collect()
    runner.launch(runner.batch([row]), CoupledDecision(None)).collect()
    assert list(runner.num_eager.values()) == [1]
    assert runner.num_replayed == {(16, "greedy"): 1}


@pytest.mark.parametrize("kind", captured.KINDS)
def test_a_step_reads_nothing_on_the_host_and_is_counted(loaded: LoadedModel, kind: Any) -> None:
    """A host read or an upload would have been refused at capture. What is left is a number of operations."""
    runner = runner_of(loaded, "recording", (16,))
    tape: Any = runner._steps[16, kind].replay
    most = {"greedy": 190, "sampled": 360, "truncated": 400}[kind]
    assert 50 < len(tape.names) <= most, (len(tape.names), sorted(set(tape.names)))


READS = {
    "item": lambda x: x * x[0, 0].item(),
    "branch": lambda x: x if x[0, 0] > 0 else -x,
    "mask": lambda x: x[x > 0].sum() + x,
    "nonzero": lambda x: x + (x > 0).nonzero().sum(),
    "upload": lambda x: x + torch.tensor([1.0]),
}


@REPLAYED
@pytest.mark.parametrize("control", READS)
def test_work_that_depends_on_the_host_is_refused(control: str, way: str) -> None:
    x, out = torch.ones(3, 3), torch.zeros(3, 3)
    with pytest.raises(CaptureError):
        WAYS[way]()(lambda: out.copy_(READS[control](x)))


@REPLAYED
def test_a_value_that_python_took_along_is_seen(way: str) -> None:
    """On a CPU nothing tells that a list was made of a tensor: only that a replay knows the old values."""
    x, out = torch.ones(3), torch.zeros(3)
    replay = WAYS[way]()(lambda: out.copy_(x + sum(x.tolist())))
    x.fill_(5.0)
    replay()
    assert out.tolist() == [8.0] * 3 != [20.0] * 3


@pytest.mark.parametrize("forgotten", static.TENSORS)
def test_a_forgotten_copy_is_seen(
    loaded: LoadedModel, forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives, steps = Lives(loaded, 8), steps_of(loaded, 8)
    right = lives.run(runner_of(loaded), steps)
    runner = runner_of(loaded)
    monkeypatch.setattr(static, "TENSORS", tuple(each for each in static.TENSORS if each != forgotten))
    assert not same(right, lives.run(runner, steps))
