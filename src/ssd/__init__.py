"""SSD: exact LLM decoding in which a draft works ahead while the target verifies."""

import os
from typing import TYPE_CHECKING, Any

from ssd.processes.openmp import wait_briefly
from ssd.version import __version__

if TYPE_CHECKING:
    from ssd.config import DraftConfig
    from ssd.engine.llm import LLM
    from ssd.sampling import Grammar, SamplingParams
    from ssd.worker.async_llm import AsyncLLM

wait_briefly(os.environ)  # Before torch is loaded, which reads it once.

__all__ = ["LLM", "AsyncLLM", "DraftConfig", "Grammar", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "ssd.engine.llm",
    "AsyncLLM": "ssd.worker.async_llm",
    "DraftConfig": "ssd.config",
    "Grammar": "ssd.sampling",
    "SamplingParams": "ssd.sampling",
}


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used, so that `import ssd` stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ssd' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
