"""Models as tuning loads them, and facts that are made up."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.drawn_text import drawn_ranks
from ssd.config import RunnerConfig
from ssd.runtime.loading import LoadedModel, load_model
from ssd.tuning.measure import DRAFT_ROWS, TARGET_ROWS, DraftFacts, Facts
from ssd.tuning.texts import Guesses


@pytest.fixture(scope="session")
def load() -> Callable[[Path], LoadedModel]:
    def loaded(folder: Path) -> LoadedModel:
        return load_model(RunnerConfig(model=str(folder), device="cpu", dtype="float32", deterministic=True))

    return loaded


def made_up_facts(
    *, acceptance: float, verify: float = 1.0, draft: float = 0.2, int8: float = 0.15, length: int = 80
) -> Facts:
    """Seconds and rates as one likes them; both drafts guess alike."""
    draw, coverage = np.random.default_rng(0), 0.7 if acceptance else 0.0
    guesses = Guesses(
        [drawn_ranks(acceptance, coverage, length=length, draw=draw).tolist() for _ in range(2)]
    )
    return Facts(
        dict.fromkeys(TARGET_ROWS, verify),
        {
            "model": DraftFacts(dict.fromkeys(DRAFT_ROWS, draft), guesses, 1.0, 1.0),
            "int8": DraftFacts(dict.fromkeys(DRAFT_ROWS, int8), guesses, 1.0, 1.0),
        },
    )
