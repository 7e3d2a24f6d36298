"""A tiny target with the first layers of itself as draft, which is sometimes right."""

from pathlib import Path

import pytest

from tests.tiny import cut_layers


@pytest.fixture(scope="session")
def tiny_draft(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(cut_layers(tiny_llama, 2, tmp_path_factory.mktemp("bench-draft")))
