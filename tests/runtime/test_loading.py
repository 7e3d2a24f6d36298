"""How much memory a model is given for its texts."""

from pathlib import Path

import pytest

from ssd.config import RunnerConfig
from ssd.runtime.loading import load_model


@pytest.mark.parametrize("max_model_len", [32, 33])
def test_the_longest_text_fits_and_no_more_is_taken(tiny_llama: Path, max_model_len: int) -> None:
    config = RunnerConfig(
        model=str(tiny_llama), device="cpu", max_model_len=max_model_len, max_num_seqs=1, block_size=16
    )
    shape = load_model(config).pool.shape
    assert max_model_len <= shape.num_blocks * shape.block_size < max_model_len + 16
