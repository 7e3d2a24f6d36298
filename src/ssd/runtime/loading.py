"""Loads a model with its runner and KV pool from a configuration.

Knows the order in which these are made and how much memory the pool may take.
"""

import gc
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ssd.attention.choice import eager_backend
from ssd.attention.inputs import PlainInput
from ssd.config import RunnerConfig
from ssd.kvcache.pool import KVPool, PoolShape
from ssd.models.checkpoint import Checkpoint, open_checkpoint
from ssd.models.decoder import DenseDecoder
from ssd.models.head_tokens import frequent_tokens
from ssd.models.int8 import InputBits
from ssd.models.shards import ShardThreads
from ssd.models.weights import ProgressSource, ShowProgress
from ssd.runtime.capture import Capture, CudaGraphs
from ssd.runtime.captured import CapturedRunner
from ssd.runtime.cores import pin_to_cores
from ssd.runtime.eager import EagerRunner
from ssd.runtime.freed_memory import return_freed_memory
from ssd.runtime.gpu_device import GpuDevice, gpu_device_of
from ssd.runtime.host import resolve_device, resolve_dtype, runner_precision
from ssd.runtime.huge_pages import request_huge_pages
from ssd.runtime.kv_planner import KVPlanner
from ssd.runtime.layout import Tiling
from ssd.runtime.memory import measured_plan
from ssd.runtime.static import draws_of_padding
from ssd.sampling import CoupledDecision

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    checkpoint: Checkpoint
    runner: EagerRunner | CapturedRunner
    pool: KVPool
    max_model_len: int
    capture: Capture | None = None
    """Captures steps on the model's GPU; None on a CPU."""

    @property
    def head_tokens(self) -> Tensor | None:
        """The tokens of the logits' columns; None: the whole vocabulary."""
        return self.runner.head_tokens


TrialCapture = Callable[[LoadedModel], object]
"""Captures a model's steps on a pool of a single block; returns an object that keeps them alive."""


def load_model(
    config: RunnerConfig,
    *,
    show_progress: ShowProgress = False,
    trial_capture: TrialCapture | None = None,
    gpu: GpuDevice | None = None,
) -> LoadedModel:
    """Loads the model of `config`.

    `trial_capture`: captures the steps once on a small pool, to measure their memory. `gpu`: plans memory and
    captures steps; None: the device itself, if it is a GPU.

    If a kernel cannot be compiled or launched during these trials, the model is loaded again without kernels.
    """
    if config.cores:
        pin_to_cores(config.cores)
    device = resolve_device(config.device)
    try:
        return _load_on(device, config, show_progress, trial_capture, gpu)
    except Exception as error:
        if device.type == "cpu" or not _leave_to_torch(device, error):
            raise
    # The memory of the first attempt was held by the exception's frames.
    gc.collect()
    return _load_on(device, config, show_progress, trial_capture, gpu)


def _leave_to_torch(device: torch.device, error: Exception) -> bool:
    # Imported here because Triton takes long to import.
    from ssd.kernels.language import leave_to_torch

    is_left = leave_to_torch(device, error)
    if is_left:
        logger.warning("our kernels fail on %s, so torch computes everything, slower: %r", device, error)
    return is_left


def _load_on(
    device: torch.device,
    config: RunnerConfig,
    show_progress: ShowProgress,
    trial_capture: TrialCapture | None,
    gpu: GpuDevice | None,
) -> LoadedModel:
    checkpoint = open_checkpoint(config.model)
    dtype = resolve_dtype(config.dtype, device, checkpoint.config.dtype)
    precision = runner_precision(config, device, dtype)
    gpu = gpu or gpu_device_of(device)
    planner = KVPlanner(config, checkpoint.config, dtype, device)
    # Before loading, since it may raise. A GPU's KV memory is known only after loading the weights.
    longest = planner.max_model_len(planner.on_host()) if gpu is None else planner.longest
    threads = ShardThreads() if config.deterministic and device.type == "cpu" else None
    model = _load_decoder(
        checkpoint,
        longest,
        dtype,
        device,
        int8_input_bits=_input_bits(config) if precision == "int8" else None,
        head_tokens=_frequent(checkpoint, config.head),
        show_progress=show_progress,
        threads=threads,
    )
    if device.type == "cpu":
        return_freed_memory()
        request_huge_pages()
    unpooled = _ModelWithoutPool(config, checkpoint, model, threads)
    if gpu is None:
        return unpooled.on(planner.on_host(), longest, None)
    shape = _planned_shape(unpooled, planner, gpu, trial_capture)
    # Releases the memory of the trial capture before the pool takes it.
    gpu.free_bytes()
    return unpooled.on(shape, planner.max_model_len(shape), gpu)


@dataclass(frozen=True, slots=True)
class _ModelWithoutPool:
    """A model without a KV pool."""

    config: RunnerConfig
    checkpoint: Checkpoint
    model: DenseDecoder
    threads: ShardThreads | None

    def on(self, shape: PoolShape, max_model_len: int, gpu: GpuDevice | None) -> LoadedModel:
        pool, config = KVPool(shape), self.config
        attention = eager_backend(pool, self.model.config.num_heads, deterministic=config.deterministic)
        tiling = Tiling(config.decode_tile, config.prefill_tile) if config.deterministic else None
        runner = EagerRunner(self.model, attention, pool, tiling=tiling, threads=self.threads)
        capture = None if gpu is None else CudaGraphs(gpu)
        return LoadedModel(self.checkpoint, runner, pool, max_model_len, capture)


def _planned_shape(
    unpooled: _ModelWithoutPool, planner: KVPlanner, gpu: GpuDevice, trial_capture: TrialCapture | None
) -> PoolShape:
    config = unpooled.config
    small = unpooled.on(replace(planner.shape(gpu.free_bytes() // 2), num_blocks=1), planner.longest, gpu)
    plan = measured_plan(
        gpu,
        lambda: _largest_step(small, config),
        lambda: None if trial_capture is None else trial_capture(small),
        share=config.kv_share,
    )
    return planner.within(plan)


def _largest_step(loaded: LoadedModel, config: RunnerConfig) -> None:
    """Runs a prompt with truncated decisions; it writes all keys to one block."""
    num_rows = min(config.step_rows, loaded.max_model_len)
    num_logits = min(config.step_logits, num_rows)
    blocks = [0] * -(-num_rows // config.block_size)
    row = PlainInput([0] * num_rows, 0, blocks, num_logits, generated=False)
    decision = CoupledDecision(draws_of_padding(num_logits, torch.device("cpu")))
    loaded.runner.launch(loaded.runner.batch([row]), decision).collect()


def _frequent(checkpoint: Checkpoint, head: int | None) -> Sequence[int] | None:
    if head is None:
        return None
    return frequent_tokens(checkpoint.tokenizer(), checkpoint.config.vocab_size, head)


def _input_bits(config: RunnerConfig) -> InputBits:
    """A draft is fast, since its tokens are verified; a target is precise."""
    return 8 if config.is_draft else 16


def _load_decoder(
    checkpoint: Checkpoint,
    num_positions: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    int8_input_bits: InputBits | None,
    head_tokens: Sequence[int] | None,
    show_progress: ShowProgress,
    threads: ShardThreads | None,
) -> DenseDecoder:
    started = time.perf_counter()
    source = ProgressSource(checkpoint.weights(), f"loading {checkpoint.name}", show=show_progress)
    try:
        model = DenseDecoder(
            checkpoint.config,
            source,
            num_positions=num_positions,
            dtype=dtype,
            device=device,
            int8_input_bits=int8_input_bits,
            head_tokens=head_tokens,
            threads=threads,
        )
    finally:
        source.close()
    format_name = "int8" if int8_input_bits else str(dtype).removeprefix("torch.")
    seconds = time.perf_counter() - started
    logger.info("loaded %s as %s on %s in %.1f s", checkpoint.name, format_name, device, seconds)
    return model
