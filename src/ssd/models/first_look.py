"""What can be refused of a target and a draft at once, before torch is imported: that alone takes seconds.

Reads names, the sizes of files, and tokenizers as they are stored. Only what is certain is refused here; the
engine checks everything again, and more, from the loaded libraries. Downloads nothing.
"""

import json
import re
from pathlib import Path

from ssd.config import EngineConfig
from ssd.models.gguf_check import check_counts, read_tokens
from ssd.models.hub import find_model_files
from ssd.processes.host_memory import HostMemory, gib, host_memory

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/nvhost-ctrl-gpu")
"""Device files of GPU drivers. Without any of them, `auto` is a CPU."""
_ANOTHER_FAMILY = 0.5
"""Two vocabularies that differ in more than this share of their common ids are not of one family."""


def first_look(config: EngineConfig, memory: HostMemory | None = None) -> None:
    """ValueError, with a remedy, for settings that cannot work. `memory`: None asks the system."""
    for device in (config.device, config.draft.device if config.draft else "auto"):
        if not _DEVICE.fullmatch(device):
            raise ValueError(f"device={device!r}: use 'auto', 'cpu', 'cuda' or 'cuda:N'")
    draft = config.own_draft
    target = find_model_files(config.model, hf_cache=config.hf_cache)
    drafting = None if draft is None else find_model_files(draft.model, hf_cache=config.hf_cache)
    for path in (target, drafting):
        if path is not None and path.is_file():
            check_counts(path)
    if target is not None and drafting is not None:
        _refuse_another_family(target, drafting)
    _refuse_without_memory(config, target, drafting, memory or host_memory())


def _refuse_another_family(target: Path, draft: Path) -> None:
    ours, theirs = _vocabulary(target), _vocabulary(draft)
    shared = ours.keys() & theirs.keys()
    differing = sorted(token for token in shared if ours[token] != theirs[token])
    if len(differing) > _ANOTHER_FAMILY * len(shared):
        token = differing[0]
        raise ValueError(
            f"{draft.name} cannot draft for {target.name}: their tokenizers differ (token {token} is "
            f"{theirs[token]!r} and {ours[token]!r}); use a draft of the same family"
        )


def _vocabulary(path: Path) -> dict[int, str]:
    """Texts by token id, as they are stored; empty if this file has another form."""
    if path.is_file():
        return dict(enumerate(read_tokens(path)))
    try:
        vocabulary = json.loads((path / "tokenizer.json").read_text())["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if isinstance(vocabulary, dict):
        return {token: text for text, token in vocabulary.items()}
    return {token: text for token, (text, *_) in enumerate(vocabulary)}


def _refuse_without_memory(
    config: EngineConfig, target: Path | None, draft: Path | None, memory: HostMemory
) -> None:
    """Weights take at least as many bytes in memory as in their files, or half as many as float32."""
    if not _is_cpu(config.device):
        return
    needs = {} if target is None else {"target": _least_weights(target) + (config.kv_cache_bytes or 0)}
    own = config.own_draft
    if draft is not None and own is not None and _is_cpu(own.device):
        # A draft may be rounded to int8: half of bfloat16.
        needs["draft"] = _least_weights(draft) // 2 + (own.kv_cache_bytes or 0)
    if sum(needs.values()) > memory.available:
        parts = ", ".join(f"{who} {gib(size)}" for who, size in needs.items())
        raise ValueError(
            f"out of memory before anything is loaded: at least {gib(sum(needs.values()))} are needed "
            f"({parts}); there are {memory}: use a smaller model or --kv-cache-bytes, free memory, or raise "
            "the limit of the container"
        )


def _least_weights(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    stored = sum(each.stat().st_size for each in path.glob("*.safetensors"))
    try:
        declared = json.loads((path / "config.json").read_text())
        is_float32 = "float32" in (declared.get("dtype"), declared.get("torch_dtype"))
    except (OSError, ValueError, AttributeError):
        is_float32 = True
    return stored // 2 if is_float32 else stored


def _is_cpu(device: str) -> bool:
    return device == "cpu" or (device == "auto" and not any(Path(each).exists() for each in _GPU_FILES))
