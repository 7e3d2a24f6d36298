"""What a loaded model is given: memory for its texts, and threads."""

from pathlib import Path

import pytest
import torch

from ssd.attention.inputs import PlainInput
from ssd.config import RunnerConfig
from ssd.runtime.loading import load_model


@pytest.mark.parametrize("max_model_len", [32, 33])
def test_the_longest_text_fits_and_no_more_is_taken(tiny_llama: Path, max_model_len: int) -> None:
    config = RunnerConfig(
        model=str(tiny_llama), device="cpu", max_model_len=max_model_len, max_num_seqs=1, block_size=16
    )
    shape = load_model(config).pool.shape
    assert max_model_len <= shape.num_blocks * shape.block_size < max_model_len + 16


def test_deterministic_mode_computes_each_operation_on_one_thread(tiny_llama: Path) -> None:
    """No bit may depend on their number."""
    config = RunnerConfig(model=str(tiny_llama), device="cpu", deterministic=True, max_num_seqs=1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        runner = load_model(config).runner
        batch = runner.batch([PlainInput([1, 2], 0, [0], 1, generated=False)])
        used = runner.launch(batch, lambda logits: torch.tensor(torch.get_num_threads())).collect()
        assert (int(used), torch.get_num_threads()) == (1, 2)
    finally:
        torch.set_num_threads(threads)
