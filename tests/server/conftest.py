"""Servers that tests share. Engines compute with one thread, as the tests' own do."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

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
    """One that takes its model to write calls as Qwen's do, with markers that are tokens as theirs are."""
    model = tmp_path_factory.mktemp("qwen-like") / "model"
    shutil.copytree(tiny_llama, model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(
        [AddedToken(f"<{slash}tool_call>", special=False, normalized=False) for slash in ("", "/")]
    )
    tokenizer.save_pretrained(model)
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(model, log, {"served_model_name": "tiny", "tool_format": "hermes"}) as found:
        yield found


@pytest.fixture(scope="session")
def forcing_llama3(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """And one that takes it to write them as Llama 3 does."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(tiny_llama, log, {"served_model_name": "tiny", "tool_format": "llama3"}) as found:
        yield found
