"""What `ssd doctor` says of a target and a draft before they load: devices, memory, and whether SSD pays.

Reads headers and tokenizers. Knows this engine's placement and that of `ssd serve --engine vllm`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ssd.cli import machine

if TYPE_CHECKING:
    from ssd.config import EngineConfig
    from ssd.models.config import ModelConfig

Say = Callable[[str], None]


def pair_facts(model: str | None, draft: str | None, hf_cache: str | None, say: Say) -> dict[str, str]:
    """Facts by topic; empty if no target was named."""
    from ssd.engine.model_placement import place_models

    config = _local_config(model, draft, hf_cache)
    if config is None:
        return {}
    say("reading headers and tokenizers")
    found = {each.who: each.words for each in place_models(config, machine.free_memory())}
    if config.draft is None:
        return found
    found["tokenizers"] = _tokenizers(config)
    if gpus := machine.gpu_names():
        found |= {"inside vLLM": _inside_vllm(config), "SSD": _whether_it_pays(config, gpus)}
    return found


def pair_models(
    model: str | None, draft: str | None, hf_cache: str | None
) -> "tuple[ModelConfig, ModelConfig] | None":
    """Target and draft as their headers say; None: no pair was named."""
    config = _local_config(model, draft, hf_cache)
    return None if config is None or config.draft is None else _models(config)


def _local_config(model: str | None, draft: str | None, hf_cache: str | None) -> "EngineConfig | None":
    from ssd.config import DraftConfig, EngineConfig
    from ssd.models.hub import with_local_models

    if model is None:
        if draft is not None:
            raise ValueError("--draft needs a target: name it with --model")
        return None
    drafting = None if draft is None else DraftConfig(model=draft)
    return with_local_models(
        EngineConfig(model=model, mode="ssd" if drafting else "ar", draft=drafting, hf_cache=hf_cache)
    )


def _models(config: "EngineConfig") -> "tuple[ModelConfig, ModelConfig]":
    from ssd.models.checkpoint import open_checkpoint

    draft = config.model if config.draft is None else config.draft.model
    return open_checkpoint(config.model).config, open_checkpoint(draft).config


def _tokenizers(config: "EngineConfig") -> str:
    """Whether target and draft have the same tokenizer, by the engine's own check."""
    from ssd.engine.build import refuse_another_tokenizer

    try:
        refuse_another_tokenizer(config)
    except ValueError as error:
        return f"does not fit: {error}"
    return "the draft's tokens mean what the target's do"


def _inside_vllm(config: "EngineConfig") -> str:
    """Where `ssd serve --engine vllm` would put the two, with which memory."""
    from ssd.cli.serve_vllm import visible_gpus
    from ssd.cli.vllm_memory import with_memory
    from ssd.integrations.vllm.placement import on_gpus

    try:
        placement = with_memory(on_gpus(config, visible_gpus(), ranks=1), ranks=1, flags=())
    except ValueError as error:
        return f"does not fit: {error}"
    draft = placement.config.draft
    kv = "" if draft is None or draft.kv_cache_bytes is None else f", the draft {draft.kv_cache_bytes} of KV"
    return f"{placement.words}; {' '.join(placement.memory) or 'all of its GPUs for vLLM'}{kv}"


def _whether_it_pays(config: "EngineConfig", gpus: list[str]) -> str:
    """By the first GPU's data sheet."""
    from ssd.planning.hardware import called_like
    from ssd.selftest.pay_off import pay_off

    sheet = called_like(gpus[0])
    if sheet is None:
        return f"no data sheet of {gpus[0]} is known (`ssd plan --list`): `benchmarks.vllm_page` measures it"
    target, draft = _models(config)
    return pay_off(target, draft, sheet, num_devices=len(gpus), has_mps=machine.has_mps())[1]
