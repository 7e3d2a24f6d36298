"""Models that tests of whole engines share: a small target with drafts, and some layers of a real one."""

from pathlib import Path

import pytest

from tests.e2e.shallow_gguf import first_layers
from tests.tiny import cut_layers, write_checkpoint


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("medium", tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def drafts(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Always right, sometimes right, never right but by chance; and one of another vocabulary size."""
    return {
        "itself": target,
        "cut": cut_layers(target, 2, tmp_path_factory.mktemp("cut")),
        "another": write_checkpoint("llama3", tmp_path_factory.mktemp("other"), seed=9),
        "padded": write_checkpoint("padded", tmp_path_factory.mktemp("padded"), seed=3),
    }


@pytest.fixture(scope="session")
def shallow_smollm2(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 of its 30 layers: a real model at a fraction of its cost."""
    return first_layers(smollm2, 4, tmp_path_factory.mktemp("shallow") / smollm2.name)
