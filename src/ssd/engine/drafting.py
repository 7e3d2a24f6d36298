"""The engine's draft in mode `ssd`: who runs it, where, and what a missing one means at start.

Knows settings and processes. A draft that cannot be had at start is an error with a remedy; one that
is lost later costs speed only.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ssd.config import EngineConfig
from ssd.decoding.decoder import Decoder
from ssd.decoding.parallel import ParallelDecoder
from ssd.draft.client import DraftClient
from ssd.draft.greeting import greeting
from ssd.draft.line import DraftSource, Line
from ssd.draft.link import Keys
from ssd.draft.messages import Hello
from ssd.draft.policy import Policy
from ssd.draft.sources import START_SECONDS, AddressSource, ChildSource
from ssd.runtime.cores import share_out
from ssd.runtime.fit import has_own_draft
from ssd.runtime.loading import LoadedModel

logger = logging.getLogger(__name__)


def with_own_cores(config: EngineConfig) -> EngineConfig:
    """On CPUs alone, target and draft get cores of their own; those that someone named are kept."""
    if config.mode != "ssd" or not has_own_draft(config) or not _is_on_cpus(config):
        return config
    split = share_out(target=config.cores, draft=config.draft_cores)
    if not (split.target and split.draft):
        logger.warning("no core is left for one of target and draft: nothing is gained over mode 'sd'")
        return config
    if split.shares_physical_cores:
        logger.warning(
            "target (cores %s) and draft (%s) share a physical core and slow each other: "
            "give them others, if there are any, or use mode 'sd'",
            *(",".join(map(str, cores)) for cores in (split.target, split.draft)),
        )
    return replace(config, cores=split.target, draft_cores=split.draft)


def parallel_decoder(config: EngineConfig, target: LoadedModel, tokenizer: Any) -> Decoder:
    client = DraftClient(draft_source(config, _hello(target, tokenizer)), lookahead=config.max_lookahead)
    policy = Policy(client, lookahead=config.max_lookahead, backup=config.backup)
    try:
        policy.start(START_SECONDS)
        _require_ready(client.line)
    except BaseException:
        policy.close()
        raise
    return ParallelDecoder(target.runner, policy, acceptance=config.acceptance, saguaro=config.saguaro)


def replace_draft(decoder: Decoder, config: EngineConfig, target: LoadedModel, tokenizer: Any) -> None:
    """Starts or finds the draft that the settings name; it takes over as soon as it is ready."""
    if not isinstance(decoder, ParallelDecoder):
        raise ValueError("only mode 'ssd' has a draft that can be replaced while it runs")
    decoder.replace_draft(draft_source(config, _hello(target, tokenizer)))


def _hello(target: LoadedModel, tokenizer: Any) -> Hello:
    checkpoint = target.checkpoint
    return greeting(
        tokenizer,
        vocab_size=checkpoint.config.vocab_size,
        name=checkpoint.name,
        max_model_len=target.max_model_len,
    )


def draft_source(config: EngineConfig, hello: Hello) -> DraftSource:
    """Of the draft that the settings name: an address, or a process of our own."""
    if not has_own_draft(config):
        keys = Keys(Path(config.draft_keys)) if config.draft_keys else None
        return AddressSource(str(config.draft), hello, timeout=config.draft_timeout, keys=keys)
    return ChildSource(draft_arguments(config), hello, timeout=config.draft_timeout)


def draft_arguments(config: EngineConfig) -> list[str]:
    """What `ssd draft` is told when the engine starts it."""
    pairs = {
        "--model": config.draft,
        "--device": config.draft_device,
        "--dtype": config.dtype,
        "--precision": config.draft_precision,
        "--head": config.draft_head,
        "--width": config.draft_width,
        "--children": config.draft_children,
        "--lookup": config.draft_lookup,
        "--growth": config.growth,
        "--cores": ",".join(map(str, config.draft_cores)) or None,
        "--kv-cache-bytes": config.kv_cache_bytes,
        "--max-num-seqs": config.max_num_seqs,
        "--hf-cache": config.hf_cache,
    }
    return [text for name, value in pairs.items() if value is not None for text in (name, str(value))]


def _require_ready(line: Line) -> None:
    if line.refusal:
        raise ValueError(line.refusal)
    if not line.is_ready:
        reason = line.last_loss or f"it did not answer within {START_SECONDS:.0f} s"
        raise ValueError(f"the draft did not start: {reason}; see what it says above, or check its address")


def _is_on_cpus(config: EngineConfig) -> bool:
    if config.device not in ("cpu", "auto") or config.draft_device not in ("cpu", "auto"):
        return False
    return config.device == "cpu" or not torch.cuda.is_available()
