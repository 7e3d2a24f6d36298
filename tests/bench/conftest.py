"""Cases around a tiny target with the first layers of itself as draft."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ssd.bench.cases import cases_of
from ssd.bench.engines import CaseEngines
from ssd.config import DraftConfig, EngineConfig

CASES = {
    case.label: case
    for case in cases_of("ar,ar+allcores,sd2,ssd", [0.0], [1]) + cases_of("ar,ssd", [0.8], [3])
}


@pytest.fixture(scope="package")
def engines(tiny_llama: Path, tiny_draft: str) -> Iterator[CaseEngines]:
    config = EngineConfig(model=str(tiny_llama), device="cpu", dtype="float32", deterministic=True)
    with CaseEngines(config, DraftConfig(model=tiny_draft), list(CASES.values())) as made:
        made.warm_up(list(CASES.values()), "The quick brown fox")
        yield made
