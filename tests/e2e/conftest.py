"""A real model at a fraction of its cost: what CI runs where the full size takes minutes."""

from pathlib import Path

import pytest

from tests.e2e.shallow_gguf import first_layers


@pytest.fixture(scope="session")
def shallow_smollm2(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 of its 30 layers."""
    return first_layers(smollm2, 8, tmp_path_factory.mktemp("shallow") / smollm2.name)
