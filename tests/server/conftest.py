"""Servers that tests share. Engines compute with one thread, as the tests' own do."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

from ssd import LLM
from tests.server.process import DEFAULTS, ServerProcess, serving
from tests.server.reciter import PIECES, write_reciter

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for every test that leaves it as it was."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(tiny_llama, log, {"served_model_name": "tiny", "max_n": 4, "max_prompts": 8}) as found:
        yield found


@pytest.fixture(scope="session")
def llm(tiny_llama: Path) -> LLM:
    """The engine of `server`, without HTTP."""
    return LLM(str(tiny_llama), show_progress=False, **DEFAULTS)


@pytest.fixture(scope="session")
def forcing(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One that takes its model to write calls as Qwen's do, with markers that are tokens as theirs are."""
    model = knowing_tools(tiny_llama, tmp_path_factory.mktemp("qwen-like"), "<tool_call>", "</tool_call>")
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(model, log, {"served_model_name": "tiny", "tool_format": "hermes"}) as found:
        yield found


@pytest.fixture(scope="session")
def guarded(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Has two keys, and a model that writes calls as Llama 3 does."""
    model = knowing_tools(tiny_llama, tmp_path_factory.mktemp("llama-3-like"))
    log = tmp_path_factory.mktemp("guarded") / "log"
    settings = {"api_keys": ("first-key", "second-key"), "served_model_name": "tiny", "tool_format": "llama3"}
    with serving(model, log, settings) as found:
        yield found


@pytest.fixture(scope="session")
def reciter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Recites reasoning and calls, in turns with a draft that is always right."""
    model = write_reciter(tmp_path_factory.mktemp("reciter"), PIECES)
    log = tmp_path_factory.mktemp("server") / "log"
    drafting: dict[str, Any] = {"mode": "sd", "draft": str(model), "lookahead": 4}
    with serving(model, log, {"served_model_name": "reciter"}, **drafting) as found:
        yield found


WORDY = "m" * 20_000
"""The model's name: in every chunk, so that a short answer is more than sockets hold."""


@pytest.fixture(scope="session")
def hurried(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Waits a second for clients; its model's template has no tools."""
    limits = {"header_seconds": 1.0, "body_seconds": 1.0, "write_seconds": 1.0, "max_connections": 64}
    log = tmp_path_factory.mktemp("hurried") / "log"
    with serving(tiny_llama, log, {**limits, "served_model_name": WORDY, "tool_format": "hermes"}) as found:
        yield found


LOOP = (
    '{% if messages[0].content == "for ever" %}{% for a in range(99999) %}{% for b in range(99999) %}'
    "{% endfor %}{% endfor %}{% endif %}"
)
"""What a template may do to a server."""


def knowing_tools(model: Path, folder: Path, *markers: str) -> Path:
    """A copy whose chat template takes tools; it does not show them, for its context is short."""
    shutil.copytree(model, folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in markers])
    tokenizer.chat_template += "{# tools #}" + LOOP
    tokenizer.save_pretrained(folder / "model")
    return folder / "model"
