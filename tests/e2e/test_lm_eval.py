"""The small form of `python -m campaigns.e2e.lm_eval`, which takes a real model."""

from pathlib import Path

from campaigns.e2e.lm_eval import compare
from tests.server.process import serving


def test_scores_and_texts_are_those_of_transformers(tiny_llama: Path, tmp_path: Path) -> None:
    with serving(tiny_llama, tmp_path / "log", mode="ssd", draft=str(tiny_llama)) as server:
        found = compare(server, tiny_llama, 4, tmp_path)
    assert found.is_good, str(found)
    assert found.num_scores == 16
    assert found.worst < 1e-3
