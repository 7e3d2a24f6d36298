"""Models as tuning loads them, and facts that are made up."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ssd.bench.bare import MISSED
from ssd.config import MAX_CHILDREN, RunnerConfig
from ssd.runtime.loading import LoadedModel, load_model
from ssd.tuning.measure import DRAFT_ROWS, TARGET_ROWS, DraftFacts, Facts
from ssd.tuning.texts import Guesses


def drawn_ranks(acceptance: float, coverage: float, length: int, seed: int) -> list[int]:
    """By place of a text: which of the draft's guesses is right, or MISSED; the rates are met exactly."""
    others = 0.5 ** np.arange(MAX_CHILDREN - 1)
    shares = [acceptance, *((1 - acceptance) * coverage * others / others[:3].sum())]
    bounds = np.round(np.minimum(np.cumsum(shares), 1.0) * length)
    ranks = np.searchsorted(bounds, np.arange(length), side="right")
    ranks = np.where(ranks < MAX_CHILDREN, ranks, MISSED)
    return [int(rank) for rank in np.random.default_rng(seed).permutation(ranks)]


@pytest.fixture(scope="session")
def load() -> Callable[[Path], LoadedModel]:
    def loaded(folder: Path) -> LoadedModel:
        return load_model(RunnerConfig(model=str(folder), device="cpu", dtype="float32", deterministic=True))

    return loaded


def made_up_facts(
    *, acceptance: float, verify: float = 1.0, draft: float = 0.2, int8: float = 0.15, length: int = 80
) -> Facts:
    """Seconds and rates as one likes them; both drafts guess alike."""
    coverage = 0.7 if acceptance else 0.0
    guesses = Guesses([drawn_ranks(acceptance, coverage, length, seed) for seed in range(2)])
    return Facts(
        dict.fromkeys(TARGET_ROWS, verify),
        {
            "model": DraftFacts(dict.fromkeys(DRAFT_ROWS, draft), guesses, 1.0, 1.0),
            "int8": DraftFacts(dict.fromkeys(DRAFT_ROWS, int8), guesses, 1.0, 1.0),
        },
    )
