"""Sources of released vLLMs that were fetched before; tests fetch nothing."""

import os
from pathlib import Path

import pytest

from ssd.integrations.vllm.released import CACHE, Releases


def cached(version: str) -> Path | None:
    """vLLM's own folder."""
    return Releases(cache=Path(os.environ.get("SSD_TEST_VLLM_SOURCES", CACHE))).cached(version)


def sources(version: str) -> Path:
    """The same; the test is skipped where it was not fetched."""
    found = cached(version)
    if found is None:
        pytest.skip(
            f"no sources of vLLM {version}: python -m ssd.integrations.vllm.contract {version} fetches them"
        )
    return found
