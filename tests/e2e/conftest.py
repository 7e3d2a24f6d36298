"""Some layers of a real model, which tests of whole engines share."""

from pathlib import Path

import pytest

from tests.e2e.shallow_gguf import first_layers


@pytest.fixture(scope="session")
def shallow_smollm2(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 of its 30 layers: a real model at a fraction of its cost."""
    return first_layers(smollm2, 4, tmp_path_factory.mktemp("shallow") / smollm2.name)
