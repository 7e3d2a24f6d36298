"""Builds a draft server from its settings: model, KV blocks, scheduler and socket."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from ssd.attention.backend import AttentionBackend
from ssd.attention.choice import captured_backend
from ssd.config import DraftConfig, GrowthPolicyName
from ssd.draft.protocol.messages import Hello
from ssd.draft.protocol.sockets import DraftSocket, Keys, ZmqDraftSocket
from ssd.draft.server.device_steps import DeviceParts, DeviceSteps
from ssd.draft.server.host_steps import HostSteps
from ssd.draft.server.scheduler import DraftScheduler, HostLimits
from ssd.draft.server.server import DraftServer
from ssd.draft.server.steps import Steps
from ssd.draft.tree.arrays import NumpyArrays, TorchArrays
from ssd.draft.tree.children import LooseChildren
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.model import ArraysModel, TensorsModel
from ssd.draft.tree.tables import Shape
from ssd.kvcache.block_manager import BlockManager
from ssd.kvcache.pool import NODES_PER_TREE
from ssd.processes.host_memory import host_memory
from ssd.runtime.capture import Capture
from ssd.runtime.host import resolve_device
from ssd.runtime.loading import LoadedModel, load_model
from ssd.runtime.memory_needs import check_host_memory, memory_needs

logger = logging.getLogger(__name__)

_ROWS_TO_READ = 128
"""Rows of a step for tokens that texts have gained."""
_HOST_CHUNK = 128
"""Prompt tokens read beside a step on a CPU, where a row more costs time. On a GPU: `step_rows`."""


def open_socket(address: str, keys: str | None) -> ZmqDraftSocket:
    return ZmqDraftSocket(address, Keys(Path(keys)) if keys else None)


def shape_for(loaded: LoadedModel, config: DraftConfig) -> Shape:
    pool = loaded.pool.shape
    return Shape(
        pool.num_trees,
        config.width,
        rows=config.width + _ROWS_TO_READ,
        lookup=config.lookup,
        slots=NODES_PER_TREE,
        children=config.children,
        block=pool.block_size,
        blocks=-(-loaded.max_model_len // pool.block_size),
        # Row 0, which is padding, uses the spare slots before the first tree.
        first_tree_slot=pool.tree_start(-1),
    )


def build_scheduler(
    loaded: LoadedModel, shape: Shape, config: DraftConfig, clock: Callable[[], float] = time.monotonic
) -> DraftScheduler:
    """On a GPU: tensors, with every step captured. On a CPU: numpy arrays, which are faster there.

    On a GPU without our attention kernel (for example without a compiler): arrays and eager steps.
    """
    pool = loaded.pool
    attention = captured_backend(pool, loaded.runner.model.config.num_heads)
    if loaded.capture is None or attention is None:
        if loaded.capture is not None:
            logger.warning("the draft's steps run eagerly and slower: see the log lines about kernels above")
        steps: Steps = _host_steps(loaded, shape, config.growth)
        chunk = _HOST_CHUNK
    else:
        steps = _device_steps(loaded, shape, config.growth, loaded.capture, attention)
        chunk = config.runner.step_rows
    return DraftScheduler(
        steps,
        BlockManager(pool.shape.num_blocks, pool.shape.block_size),
        HostLimits(chunk, loaded.max_model_len, config.tenant_weights),
        clock=clock,
    )


def _host_steps(loaded: LoadedModel, shape: Shape, growth: GrowthPolicyName) -> HostSteps:
    forest, model = Forest(NumpyArrays(), shape, growth), ArraysModel(loaded.runner, loaded.pool, shape)
    return HostSteps(forest, model, LooseChildren(shape.children, loaded.head_tokens), loaded.head_tokens)


def _device_steps(
    loaded: LoadedModel,
    shape: Shape,
    growth: GrowthPolicyName,
    capture: Capture,
    attention: AttentionBackend,
) -> DeviceSteps:
    # Import late: Triton takes long to import and is useless on a CPU.
    from ssd.draft.tree.gpu import FusedForest, children_on, kernels_on
    from ssd.draft.tree.gpu_rows import edits_on, news_writer_on, run_finder_on

    pool, started = loaded.pool, time.perf_counter()
    device = pool.shape.device
    xp, kernels = TorchArrays(device), kernels_on(device)
    plain, truncating = (
        children_on(device, shape.children, loaded.head_tokens, truncates=each) for each in (False, True)
    )
    parts = DeviceParts(
        device,
        lambda rows, tables: FusedForest(xp, rows, growth, kernels, tables),
        TensorsModel(loaded.runner.model, attention, pool, shape, beside=loaded.runner),
        plain,
        truncating,
        loaded.head_tokens,
        capture,
        run_finder_on,
        edits_on,
        news_writer_on,
    )
    steps = DeviceSteps(parts, shape)
    seconds = time.perf_counter() - started
    logger.info("captured the draft steps of %s in %.1f s", loaded.checkpoint.name, seconds)
    return steps


def build_server(
    config: DraftConfig, link: DraftSocket, clock: Callable[[], float] = time.monotonic
) -> DraftServer:
    def scheduler(loaded: LoadedModel) -> DraftScheduler:
        return build_scheduler(loaded, shape_for(loaded, config), config, clock)

    if resolve_device(config.runner.device).type == "cpu":
        check_host_memory([memory_needs("draft", config.runner)], host_memory())
    loaded = load_model(config.runner, trial_capture=scheduler)
    hello = Hello.of(
        loaded.checkpoint.tokenizer(),
        vocab_size=loaded.checkpoint.config.vocab_size,
        name=config.name or loaded.checkpoint.path.name,
        max_model_len=loaded.max_model_len,
    )
    return DraftServer(scheduler(loaded), link, hello, clock=clock)
