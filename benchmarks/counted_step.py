"""Counts what a draft step asks of a GPU, without one. Needs Triton: its kernels are counted and do not run.

Three runs of the real code:

- `graphs_of` captures the steps of a model's real shape, with our kernels, on tensors that have shapes only:
  the kernels of each graph, and their bytes.
- `counted_steps` plays rounds on tensors that have values, with a rule in place of the model and torch in
  place of kernels: which graphs a step replays, and all that it asks for beside them.
- `host_seconds` plays the same rounds twice on the CPU's tensors. The first run records what each step says;
  in the second, replays do nothing and steps say it again, so the host's time is all that is left.

Knows the draft's parts. Does not know prices.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from benchmarks.ruled import VOCAB, RuledModel, device_steps, outcome
from ssd.attention.choice import eager_backend
from ssd.config import DraftConfig
from ssd.draft.protocol.codec import encode
from ssd.draft.protocol.messages import Open, Sampling, pack_ints
from ssd.draft.server.device_steps import DeviceSteps, QueuedStep
from ssd.draft.server.main import build_scheduler, shape_for
from ssd.draft.server.scheduler import DraftScheduler, HostLimits
from ssd.draft.server.session import DraftSession
from ssd.draft.server.steps import StepInput
from ssd.draft.tree.tables import Shape
from ssd.kernels.tiles import NOT_KNOWN, AttentionShape, attention_tiles
from ssd.kvcache.block_manager import BlockManager
from ssd.kvcache.pool import KVPool
from ssd.planning.step_price import DeviceCall, KernelWork
from ssd.runtime.capture import Capture, CudaGraphs, Replay, Work
from ssd.runtime.eager import EagerRunner
from ssd.runtime.loading import LoadedModel
from ssd.selftest.made_up import MadeUpShape, loaded_model
from tests.runtime.counted_device import DEVICE, CountedDevice, size_of
from tests.runtime.recording import RunAgain
from tests.runtime.stand_in import StandInDevice
from tests.still_clock import still

LLAMA_1B = MadeUpShape(16, 2048, 8192, 32, 8, 128_256, 64)
LONGEST, LOOKAHEAD = 131_072, 8
"""Tokens of a text that the draft has room for; drafted tokens of a round."""
_CPU = torch.device("cpu")
_NUM_BLOCKS, _H100_PROCESSORS, _NODES_SEEN = 16_384, 132, 64

ANSWERS = {
    "ssd.kernels.language.can_launch": True,
    "ssd.draft.tree.gpu.can_launch": True,
    "ssd.draft.tree.gpu_rows.can_launch": True,
    "ssd.kernels.attention.is_hip": False,
}
"""What functions that need a real GPU return here, by their names."""

Kernels = tuple[KernelWork, ...]


@dataclass(frozen=True, slots=True)
class LiveRows:
    """What of a step's rows is not padding."""

    rows: int
    sequences: int
    """Those that have any of the rows."""
    moves: int
    """Keys that outcomes move."""
    context: int


@dataclass(frozen=True, slots=True)
class CountedStep:
    live: LiveRows
    calls: tuple[DeviceCall, ...]

    def of(self, kind: str) -> list[DeviceCall]:
        return [each for each in self.calls if each.kind == kind]

    @property
    def kernels(self) -> list[KernelWork]:
        return [kernel for call in self.calls for kernel in call.kernels]


# The graphs, by their shapes.


def graphs_of(model: MadeUpShape, config: DraftConfig) -> tuple[Shape, list[Kernels]]:
    """The draft's tables, and the kernels of its graphs in the order of their capture.

    Kernels of attention have no bytes for keys: these depend on the live rows.
    """
    shape, device = _captured(model, config)
    return shape, [tuple(each) for each in device.graphs]


def peak_bytes(model: MadeUpShape, config: DraftConfig) -> int:
    """The most memory that loading a model and capturing its steps takes, KV cache included."""
    return _captured(model, config)[1].peak_bytes


@torch.inference_mode()
def _captured(model: MadeUpShape, config: DraftConfig) -> tuple[Shape, CountedDevice]:
    device = CountedDevice(keeps_values=False)
    gpu = StandInDevice(counts=device)
    with device, _answered():
        loaded = _loaded(model, config, CudaGraphs(gpu))
        shape = shape_for(loaded, config)
        with _our_kernels(device, loaded.pool, shape):
            build_scheduler(loaded, shape, config, still)
    return shape, device


def _loaded(model: MadeUpShape, config: DraftConfig, capture: Capture) -> LoadedModel:
    loaded = loaded_model(model, DEVICE, torch.bfloat16)
    trees = config.runner.num_trees
    pool = KVPool(replace(loaded.pool.shape, num_blocks=_NUM_BLOCKS, num_trees=trees))
    decoder = loaded.runner.model
    # Prompts are not counted here.
    runner = EagerRunner(decoder, eager_backend(pool, model.heads, deterministic=False), pool)
    return replace(loaded, runner=runner, pool=pool, max_model_len=LONGEST, capture=capture)


@contextmanager
def _our_kernels(device: CountedDevice, pool: KVPool, shape: Shape) -> Iterator[None]:
    """Replaces launches of our kernels: `device` counts each, and the bytes of its arguments; none runs."""
    pools = {each.untyped_storage()._cdata for each in (pool.keys, pool.values)}
    sparse = ((shape.sequences + 1, shape.blocks), (shape.sequences + 1, LLAMA_1B.config.vocab_size + 1))
    """Shapes of the tables of blocks and of seen tokens: a kernel touches the live rows' parts."""

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        given = {id(each): each for each in tree_leaves(args) if isinstance(each, Tensor)}
        read = [
            each
            for each in given.values()
            if each.untyped_storage()._cdata not in pools and each.shape not in sparse
        ]
        device.launch(kernel.fn.__name__, sum(map(size_of, read)))

    with ExitStack() as patches:
        for kind in (JITFunction, InterpretedFunction):
            patches.enter_context(mock.patch.object(kind, "run", run))
        yield


@contextmanager
def _answered() -> Iterator[None]:
    with ExitStack() as patches:
        for name, answer in ANSWERS.items():
            patches.enter_context(mock.patch(name, return_value=answer))
        yield


def with_keys(kernels: Kernels, model: MadeUpShape, live: LiveRows) -> Kernels:
    """The kernels with the bytes of keys and values that these rows read, write and move."""
    slot = 2 * model.kv_heads * model.head_dim * torch.bfloat16.itemsize
    shape = AttentionShape(live.rows, NOT_KNOWN, LONGEST, model.heads, model.kv_heads, model.head_dim, 2)
    tiles = attention_tiles(shape, num_processors=_H100_PROCESSORS, is_hip=False, deterministic=False)
    num_tiles = live.sequences * -(-live.rows // (live.sequences * tiles.rows(shape.group)))
    more = {
        "attend": num_tiles * (live.context + _NODES_SEEN) * slot,
        "rotate_and_write": live.rows * slot,
        "move": 2 * live.moves * model.layers * slot,
        # Of each row's sequence, how often each token was seen.
        "edit_block": live.rows * (model.config.vocab_size + 1) * torch.int32.itemsize,
    }
    return tuple(replace(each, num_bytes=each.num_bytes + more.get(each.name, 0)) for each in kernels)


def bytes_to_read(model: MadeUpShape, live: LiveRows) -> int:
    """Bytes that a forward must read: weights without the embedding, and all keys and values once."""
    keys = live.sequences * live.context * 2 * model.layers * model.kv_heads * model.head_dim
    return (model.config.num_parameters + keys) * torch.bfloat16.itemsize


# Rounds, by values.


class NoReplays(RunAgain):
    """A replay does nothing."""

    def __call__(self, work: Work) -> Replay:
        work()
        return lambda: None


@dataclass(frozen=True, slots=True)
class Scene:
    """What the sequences of a draft are like."""

    batch: int
    context: int
    sampling: Sampling


class RuledDraft:
    """A draft whose sequences all have the same parameters, in the middle of their texts."""

    def __init__(self, shape: Shape, scene: Scene, device: torch.device, capture: Capture) -> None:
        steps = device_steps(RuledModel(), shape, capture, device=device)
        self.steps = steps
        limits = HostLimits(prefill_chunk=1 << 20, max_model_len=LONGEST)
        self.scheduler = DraftScheduler(steps, BlockManager(_NUM_BLOCKS, shape.block), limits, clock=still)
        self._sessions = [self._opened(number, scene) for number in range(scene.batch)]
        self._n = 0
        # Prompts, roots, and a step for each that is in flight.
        for _ in range(4):
            self.step()

    def _opened(self, number: int, scene: Scene) -> DraftSession:
        prompt = [2 + (number * 5 + place * place) % (VOCAB - 2) for place in range(scene.context)]
        opening = Open(number, 1, pack_ints(prompt), len(prompt), LONGEST, LOOKAHEAD, scene.sampling)
        session = DraftSession(opening, max_len=LONGEST, vocab_size=VOCAB)
        self.scheduler.open(session)
        return session

    def decide(self) -> int:
        """An outcome for every sequence. Returns how many tokens all of them have."""
        self._n += 1
        count = 0
        for each in self._sessions:
            tokens = outcome(each.tokens[-1], [])
            while len(tokens) < 4:
                tokens += outcome(tokens[-1], [])
            self.scheduler.advance(each, self._n, tokens)
            count += len(tokens)
        return count

    def step(self) -> int:
        """Returns the number of rows."""
        for each in self._sessions:
            each.note_arrival(each.num_sent)
        frames, num_rows = self.scheduler.grow()
        if frames is not None:
            encode([frames.message()])
        return num_rows


@torch.inference_mode()
def counted_steps(shape: Shape, scene: Scene, rounds: int = 3) -> tuple[CountedStep, CountedStep]:
    """A step that begins with an outcome for every sequence, and the one after it, of the last round."""
    device = CountedDevice()
    gpu = StandInDevice(counts=device)
    with device:
        draft = RuledDraft(shape, scene, DEVICE, CudaGraphs(gpu))
        for _ in range(rounds):
            device.forget()
            num_tokens = draft.decide()
            first = _counted(device, draft, scene, num_tokens)
            device.forget()
            second = _counted(device, draft, scene, 0)
    return first, second


def _counted(device: CountedDevice, draft: RuledDraft, scene: Scene, num_moves: int) -> CountedStep:
    draft.step()
    calls = tuple(device.calls)
    sequences = draft.steps.latest.forest.rows.sequence.cpu()
    live_rows = sequences[sequences > 0]
    live = LiveRows(len(live_rows), len(live_rows.unique()), num_moves, scene.context)
    return CountedStep(live, calls)


def with_graphs(step: CountedStep, graphs: Sequence[Kernels], model: MadeUpShape) -> CountedStep:
    """The step with the kernels of the graphs that it replays."""
    calls = [
        replace(each, kernels=with_keys(graphs[int(each.name.split()[1])], model, step.live))
        if each.kind == "replay"
        else each
        for each in step.calls
    ]
    return replace(step, calls=tuple(calls))


def host_seconds(shape: Shape, scene: Scene, rounds: int) -> tuple[list[float], list[float]]:
    """The host's seconds of each step with outcomes, and of each after one."""
    said = list[NDArray[np.int32]]()
    launch = DeviceSteps.launch

    def record(steps: DeviceSteps, given: StepInput) -> QueuedStep:
        launched = launch(steps, given)
        said.append(launched.result.copy())
        return launched

    def repeat(steps: DeviceSteps, given: StepInput) -> QueuedStep:
        launched = launch(steps, given)
        launched.result[:] = next(again)
        return launched

    with mock.patch.object(DeviceSteps, "launch", record):
        _timed_steps(RuledDraft(shape, scene, _CPU, RunAgain()), rounds)
    again = iter(said)
    with mock.patch.object(DeviceSteps, "launch", repeat):
        return _timed_steps(RuledDraft(shape, scene, _CPU, NoReplays()), rounds)


def _timed_steps(draft: RuledDraft, rounds: int) -> tuple[list[float], list[float]]:
    found: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for seconds, decides in zip(found, (True, False), strict=True):
            started = time.thread_time()
            if decides:
                draft.decide()
            draft.step()
            seconds.append(time.thread_time() - started)
    return found
