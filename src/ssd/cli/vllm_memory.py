"""Divides this machine's memory between vLLM and its draft.

Reads the sizes of models and of free memory; `integrations/vllm/memory.py` computes the shares. If the user
gives vLLM's own memory flags, nothing is changed.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

from ssd.cli.vllm_flags import value_of
from ssd.config import DraftConfig, EngineConfig
from ssd.integrations.vllm.memory import Draft, MemoryShares, Target, share_gpu, share_host
from ssd.integrations.vllm.placement import Placement
from ssd.processes.host_memory import HostMemory, available_on_node_of, host_memory

logger = logging.getLogger(__name__)

CHOSEN = ("--gpu-memory-utilization", "--kv-cache-memory-bytes", "--num-gpu-blocks-override")
"""vLLM's memory flags."""
_CHOSEN_BY_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
_LEAST_DRAFT_KV = 256 << 20
_ASK_GPU = "import torch; print(*torch.cuda.mem_get_info())"


def with_memory(
    placement: Placement, *, ranks: int, flags: Sequence[str], max_num_seqs: int | None = None
) -> Placement:
    """Add memory budgets for vLLM and the draft if they share a machine or a GPU.

    `flags`: vLLM's own flags from the user. `max_num_seqs`: if the user gave it. Raises ValueError with a
    remedy if memory does not suffice.
    """
    config = placement.config
    is_chosen = config.kv_cache_bytes is not None or any(value_of(flag, flags) for flag in CHOSEN)
    if is_chosen or os.environ.get(_CHOSEN_BY_VARIABLE) or (placement.on_gpus and not placement.shared_gpu):
        return placement
    target = _target(config, flags, max_num_seqs)
    if target is None:
        logger.warning("the size of %s is unknown: vLLM uses its own memory defaults", config.model)
        return placement
    draft = None if config.own_draft is None else _draft(config.own_draft, config, placement)
    return _with_shares(placement, _shares(placement, target, draft, ranks=ranks))


def _shares(placement: Placement, target: Target, draft: Draft | None, *, ranks: int) -> MemoryShares:
    if placement.shared_gpu and draft is not None:
        free, total = _gpu_memory(placement.shared_gpu)
        return share_gpu(total, free, target.of_rank(ranks), draft)
    memory = _host(placement.config.cores)
    return share_host(memory.total, memory.available, target, draft, ranks=ranks)


def _with_shares(placement: Placement, shares: MemoryShares) -> Placement:
    flags: list[str] = []
    if shares.target_kv is not None:
        flags = ["--kv-cache-memory-bytes", str(shares.target_kv)]
    if shares.utilisation is not None:
        flags = ["--gpu-memory-utilization", f"{shares.utilisation:.3f}"]
    config = placement.config
    if config.draft is not None and config.draft.kv_cache_bytes is None:
        config = replace(config, draft=replace(config.draft, kv_cache_bytes=shares.draft_kv))
    return replace(placement, config=config, memory=tuple(flags))


def _target(config: EngineConfig, flags: Sequence[str], max_num_seqs: int | None) -> Target | None:
    from ssd.models.stored import stored_size

    stored = stored_size(
        config.model,
        hf_cache=config.hf_cache,
        dtype=_unless_auto(value_of("--dtype", flags) or config.dtype),
        kv_dtype=_unless_auto(value_of("--kv-cache-dtype", flags)),
    )
    if stored is None:
        return None
    longest, most = value_of("--max-model-len", flags), value_of("--max-num-seqs", flags)
    most_texts = int(most) if most.isdigit() else max_num_seqs or 0
    if value_of("--speculative-config", flags):
        # A draft of vLLM's own keeps its keys in the same KV cache: how many texts fill it is unknown.
        most_texts = 0
    return Target(
        name=config.model,
        weights=stored.weights,
        kv_per_token=stored.kv_per_token,
        longest=(int(longest) if longest.isdigit() else 0)
        if longest
        else config.max_model_len or stored.longest,
        most_texts=most_texts,
    )


def _unless_auto(dtype: str) -> str | None:
    return None if dtype in ("", "auto") else dtype


def _draft(draft: DraftConfig, config: EngineConfig, placement: Placement) -> Draft:
    from ssd.models.hub import local_model
    from ssd.runtime.memory_needs import CPU, memory_needs

    here = replace(draft, model=local_model(draft.model, hf_cache=config.hf_cache))
    needs = memory_needs("draft", here.runner, "cuda" if placement.shared_gpu else CPU)
    least = max(needs.least_kv, _LEAST_DRAFT_KV)
    if draft.kv_cache_bytes is not None:
        return Draft(name=draft.model, weights=needs.weights, kv=needs.kv, least_kv=needs.kv)
    wanted = _kv_of_host_draft(here) if placement.shared_gpu else needs.kv
    return Draft(name=draft.model, weights=needs.weights, kv=wanted, least_kv=min(least, wanted))


def _kv_of_host_draft(draft: DraftConfig) -> int:
    """KV memory of a draft on a shared GPU: what it would take on a CPU, not all that is left."""
    from ssd.runtime.memory_needs import memory_needs

    return memory_needs("draft", draft.runner).kv


def _host(cores: Sequence[int]) -> HostMemory:
    """Memory of the NUMA nodes of these cores: vLLM binds a rank's memory to the node of its first core."""
    memory = host_memory()
    on_nodes = [found for core in cores or (0,) if (found := available_on_node_of(core)) is not None]
    # Cores of one node report the same number, so count at most the largest node.
    return replace(memory, available=min([memory.available, *([max(on_nodes)] if on_nodes else [])]))


def _gpu_memory(gpu: str) -> tuple[int, int]:
    """Free and total bytes. Asks in a child process, because a CUDA context takes memory."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK_GPU],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
        capture_output=True,
        text=True,
        check=False,
    )
    numbers = done.stdout.split()
    if done.returncode != 0 or len(numbers) != 2:
        raise ValueError(f"cannot read the memory of GPU {gpu}: {done.stderr.strip()[-200:]}; see nvidia-smi")
    return int(numbers[0]), int(numbers[1])
