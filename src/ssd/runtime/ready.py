"""Loads a model and, on a GPU, captures its steps.

Steps are captured twice: first on a small pool, to measure their memory, then on the KV pool, which gets the
rest of the memory. On a CPU nothing is captured.
"""

import logging
import time
from dataclasses import replace

from ssd.attention.choice import captured_backend, deterministic_captured_backend
from ssd.config import RunnerConfig
from ssd.models.weights import ShowProgress, progress_bar
from ssd.runtime.buckets import buckets_for
from ssd.runtime.capture import CaptureWithProgress
from ssd.runtime.captured import KINDS, CapturedRunner
from ssd.runtime.eager import EagerRunner
from ssd.runtime.gpu_device import GpuDevice
from ssd.runtime.loading import LoadedModel, load_model

logger = logging.getLogger(__name__)


def load_ready(
    config: RunnerConfig, *, show_progress: ShowProgress = False, gpu: GpuDevice | None = None
) -> LoadedModel:
    def captured(loaded: LoadedModel, activity: str) -> LoadedModel:
        return with_captured_steps(loaded, config, activity, show_progress=show_progress)

    loaded = load_model(
        config,
        show_progress=show_progress,
        trial_capture=lambda small: captured(small, "measuring steps of"),
        gpu=gpu,
    )
    return captured(loaded, "capturing steps of")


def with_captured_steps(
    loaded: LoadedModel, config: RunnerConfig, activity: str, *, show_progress: ShowProgress
) -> LoadedModel:
    """The model with captured steps; unchanged on a CPU. `activity` is shown in the progress bar and log."""
    eager, pool = loaded.runner, loaded.pool
    if loaded.capture is None or not isinstance(eager, EagerRunner):
        return loaded
    choose = deterministic_captured_backend if config.deterministic else captured_backend
    attention = choose(pool, eager.model.config.num_heads)
    if attention is None:
        logger.warning("steps run eagerly: no attention kernel can be captured on this device")
        return loaded
    num_blocks = -(-loaded.max_model_len // pool.shape.block_size)
    tile = config.decode_tile if config.deterministic else None
    buckets = buckets_for(num_blocks, config.step_rows, tile)
    started, count = time.perf_counter(), len(buckets.sizes) * len(KINDS)
    bar = progress_bar(f"{activity} {loaded.checkpoint.name}", count, unit="step", show=show_progress)
    try:
        runner = CapturedRunner(eager, attention, pool, buckets, CaptureWithProgress(loaded.capture, bar))
    finally:
        bar.close()
    logger.info("%s %s: %d in %.1f s", activity, loaded.checkpoint.name, count, time.perf_counter() - started)
    return replace(loaded, runner=runner)
