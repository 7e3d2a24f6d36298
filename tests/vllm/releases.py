"""Sources of released vLLMs that were fetched before; tests fetch nothing."""

import os
from pathlib import Path

import pytest

from ssd.integrations.vllm.released import CACHE, Releases


def sources(version: str) -> Path:
    """vLLM's own folder; the test is skipped where it was not fetched."""
    cache = os.environ.get("SSD_TEST_VLLM_SOURCES", CACHE)
    found = Releases(cache=Path(cache)).cached(version)
    if found is None:
        pytest.skip(
            f"no sources of vLLM {version}: python -m ssd.integrations.vllm.contract {version} fetches them"
        )
    return found
