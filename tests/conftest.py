"""What tests share: where real weights are, tiny checkpoints made on the spot, a browser."""

import os
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Threads that spin while they wait take for ever on a machine that has other work. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from tests.kernels.interpreter import interpret_kernels

interpret_kernels()

import pytest
import torch

from tests.tiny import cut_layers, write_checkpoint

LONG = ("e2e", "exact", "models", "server", "cli", "bench", "network", "examples", "worker", "pool")
"""Folders whose tests start engines or processes, or take real models; those that take longest come first."""
FLAKY = Path(__file__).with_name("known_flaky.toml")

torch.set_num_threads(1)
_CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: with a file at a time for each of several workers, none is left to the end alone."""
    flaky = {each["name"]: each["cause"] for each in tomllib.loads(FLAKY.read_text()).get("test", ())}
    for item in items:
        if _folder_of(item) in LONG:
            item.add_marker(pytest.mark.long)
        if item.nodeid in flaky:
            item.add_marker(pytest.mark.xfail(reason=flaky[item.nodeid], strict=False))
    rank = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(_folder_of(item), len(rank)))


def _folder_of(item: pytest.Item) -> str:
    below = item.path.relative_to(FLAKY.parent)
    return below.parts[0]


@pytest.fixture(autouse=True)
def _own_cores() -> Iterator[None]:
    """An engine pins the process it lives in; each test, and what it starts, gets all cores again.

    All that there were at the start: a module's engine may be pinned before its first test begins.
    """
    _unpin()
    yield
    _unpin()


def _unpin() -> None:
    if _CORES:
        os.sched_setaffinity(0, _CORES)
    torch.set_num_threads(1)


FILES = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen-draft": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "qwen-target": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
}


CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def real_model(name: str) -> Path:
    """A GGUF file in the folder SSD_TEST_MODELS names; the test is skipped where it is missing."""
    folder = os.environ.get("SSD_TEST_MODELS")
    path = Path(folder or ".") / FILES[name]
    if not folder or not path.is_file():
        pytest.skip(f"no {FILES[name]}: name its folder in SSD_TEST_MODELS")
    return path


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return real_model("smollm2")


@pytest.fixture(scope="session")
def qwen_draft() -> Path:
    return real_model("qwen-draft")


@pytest.fixture(scope="session")
def qwen_target() -> Path:
    return real_model("qwen-target")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("llama3", tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def tiny_draft(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The first layers of the tiny target as its draft: sometimes right."""
    return str(cut_layers(tiny_llama, 2, tmp_path_factory.mktemp("tiny-draft")))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium: playwright's own, one on the path, or the one that SSD_TEST_CHROMIUM names."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = os.environ.get("SSD_TEST_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    with playwright.sync_playwright() as driver:
        try:
            launched = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no Chromium to run: {str(error).splitlines()[0]}")
        yield launched
        launched.close()
