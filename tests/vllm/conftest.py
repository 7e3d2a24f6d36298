"""What tests with the real vLLM share."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder() -> Path:
    """SmolLM2 as a folder: vLLM reads no GGUF."""
    if find_spec("vllm") is None:
        pytest.skip("no vLLM")
    found = Path(os.environ.get("SSD_TEST_MODELS", ".")) / "folders" / "smollm2"
    if not (found / "config.json").is_file():
        pytest.skip(f"no folder {found}")
    return found
