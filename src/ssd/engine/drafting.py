"""The engine's draft in mode `ssd`: its device and cores, how it is started or found, and errors at start.

Knows settings and processes. A draft that is missing at start is an error with a remedy; one that is lost
later costs speed only.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from ssd.config import DraftConfig, EngineConfig
from ssd.decoding.ahead import DraftAhead
from ssd.decoding.proposer import Proposer
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import START_SECONDS, ChildSource, FixedSources, Sources, sources_at
from ssd.draft.client.pool import MOST_DRAFTS, DraftPool
from ssd.draft.client.speculator import Speculator
from ssd.draft.protocol.messages import Hello
from ssd.draft.protocol.sockets import Keys
from ssd.runtime.cores import share_out
from ssd.runtime.host import draft_device, gpu_of, gpus_here
from ssd.runtime.loading import LoadedModel

logger = logging.getLogger(__name__)


def with_own_cores(config: EngineConfig) -> EngineConfig:
    """If target and draft both run on CPUs, gives each its own cores; keeps cores that the settings name."""
    draft = config.draft
    if (
        config.mode != "ssd"
        or draft is None
        or draft.is_elsewhere
        or not _are_cpus(config.device, draft.device)
    ):
        return config
    split = share_out(target=config.cores, draft=draft.cores)
    if not (split.target and split.draft):
        logger.warning("no core is left for the target or the draft: expect no gain over mode 'sd'")
        return config
    if split.shares_physical_cores:
        logger.warning(
            "target (cores %s) and draft (%s) share a physical core and slow each other: "
            "give them other cores, or use mode 'sd'",
            *(",".join(map(str, cores)) for cores in (split.target, split.draft)),
        )
    return replace(config, cores=split.target, draft=replace(draft, cores=split.draft))


def with_own_device(config: EngineConfig, gpus: Sequence[str] | None = None) -> EngineConfig:
    """In mode `ssd`, places the draft on a GPU that the target does not use, if there is one."""
    draft = config.own_draft
    if config.mode != "ssd" or config.draft is None or draft is None:
        return config
    gpus = gpus_here() if gpus is None else gpus
    target = gpu_of(config.device, gpus)
    device = draft_device(draft.device, gpus, target=target)
    if device == target:
        logger.warning("target and draft share %s and slow each other: give them two GPUs", target)
        # Use one name for the shared GPU, so that the target is seen to leave the draft half.
        return replace(config, device=target, draft=replace(config.draft, device=target))
    if device == "cpu":
        return config
    return replace(config, draft=replace(config.draft, device=device))


def draft_ahead(config: EngineConfig, target: LoadedModel, tokenizer: Any, *, num_trees: int = 0) -> Proposer:
    """The proposer of mode `ssd`, with its draft. `num_trees`: sequences of a step that may have a tree."""
    client = DraftClient(
        draft_sources(config, _hello(target, tokenizer)),
        lookahead=config.max_lookahead,
        pool_size=config.draft.pool_size if config.draft is not None else MOST_DRAFTS,
    )
    speculator = Speculator(client, lookahead=config.max_lookahead, backup=config.backup, num_trees=num_trees)
    try:
        speculator.start(START_SECONDS)
        _require_ready(client.pool)
    except BaseException:
        speculator.close()
        raise
    return DraftAhead(speculator)


def replace_draft(proposer: Proposer, config: EngineConfig, target: LoadedModel, tokenizer: Any) -> None:
    """Starts or connects to the draft that the settings name; it takes over as soon as it is ready."""
    if not isinstance(proposer, DraftAhead):
        raise ValueError("only in mode 'ssd' can the draft be replaced while the engine runs")
    proposer.speculator.replace(draft_sources(config, _hello(target, tokenizer)))


def _hello(target: LoadedModel, tokenizer: Any) -> Hello:
    checkpoint = target.checkpoint
    return Hello.of(
        tokenizer,
        vocab_size=checkpoint.config.vocab_size,
        name=checkpoint.name,
        max_model_len=target.max_model_len,
    )


def draft_sources(config: EngineConfig, hello: Hello) -> Sources:
    """Where to find the drafts that the settings name: addresses, or a child process."""
    draft, own = config.draft, config.own_draft
    if draft is None:
        raise ValueError(f"mode={config.mode!r} needs a draft: name a small model of the same family")
    if own is None:
        keys = Keys(Path(draft.keys)) if draft.keys else None
        return sources_at(draft.model, hello, timeout=draft.timeout, keys=keys)
    child = ChildSource(draft_arguments(own, hf_cache=config.hf_cache), hello, timeout=draft.timeout)
    return FixedSources(child)


def draft_arguments(draft: DraftConfig, *, hf_cache: str | None = None) -> list[str]:
    """Arguments of `ssd draft`: a flag for each setting, by its name."""
    said = [
        word for name, value in _draft_flags(draft) for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    return said if hf_cache is None else [*said, "--hf-cache", hf_cache]


def _draft_flags(draft: DraftConfig) -> Iterator[tuple[str, object]]:
    """Settings and their values, without those of the connection, which the draft itself does not have."""
    for field in fields(draft):
        value = getattr(draft, field.name)
        if isinstance(value, tuple):
            value = ",".join(map(str, value)) or None
        if value is not None and field.name not in ("timeout", "keys", "pool_size"):
            yield field.name, value


def _require_ready(pool: DraftPool) -> None:
    if pool.refusal:
        raise ValueError(pool.refusal)
    if not pool.is_ready:
        reason = pool.last_loss or f"it did not answer within {START_SECONDS:.0f} s"
        raise ValueError(
            f"the draft did not start: {reason}: see its messages above; if it runs elsewhere, check that "
            "`ssd draft --listen` runs at that address"
        )


def _are_cpus(target: str, draft: str) -> bool:
    if target not in ("cpu", "auto") or draft not in ("cpu", "auto"):
        return False
    return target == "cpu" or not torch.cuda.is_available()
