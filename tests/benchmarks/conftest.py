"""The first layers of the tiny target as its draft: sometimes right."""

from pathlib import Path

import pytest

from tests.tiny import cut_layers


@pytest.fixture(scope="session")
def tiny_draft(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(cut_layers(tiny_llama, 2, tmp_path_factory.mktemp("benchmarks-draft")))
