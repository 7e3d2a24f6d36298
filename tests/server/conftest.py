"""Servers that tests share. Engines compute with one thread, as the tests' own do."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.process import ServerProcess, serving

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for every test that leaves it as it was."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(tiny_llama, log, {"served_model_name": "tiny", "max_n": 4, "max_prompts": 8}) as found:
        yield found


@pytest.fixture(scope="session")
def forcing(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One that takes its model to write calls as Qwen's do."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(tiny_llama, log, {"served_model_name": "tiny", "tool_format": "hermes"}) as found:
        yield found


@pytest.fixture(scope="session")
def forcing_llama3(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """And one that takes it to write them as Llama 3 does."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(tiny_llama, log, {"served_model_name": "tiny", "tool_format": "llama3"}) as found:
        yield found
