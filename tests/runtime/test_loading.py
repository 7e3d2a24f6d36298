"""What a loaded model is given: memory for its texts, and threads."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from ssd.attention.rows import PlainRow
from ssd.config import RunnerConfig
from ssd.runtime.loading import load_model
from ssd.runtime.ranks.group import Ranks


@pytest.mark.parametrize("max_model_len", [32, 33])
def test_the_longest_text_fits_and_no_more_is_taken(tiny_llama: Path, max_model_len: int) -> None:
    config = RunnerConfig(
        model=str(tiny_llama), device="cpu", max_model_len=max_model_len, max_num_seqs=1, block_size=16
    )
    shape = load_model(config).pool.shape
    assert max_model_len <= shape.num_blocks * shape.block_size < max_model_len + 16


def test_a_leading_rank_computes_each_operation_on_one_thread(tiny_llama: Path) -> None:
    """In deterministic mode no bit may depend on their number."""
    config = RunnerConfig(model=str(tiny_llama), device="cpu", deterministic=True, max_num_seqs=1)
    threads = torch.get_num_threads()
    ranks = Ranks(0, 1, HashStore(), torch.device("cpu"))
    try:
        torch.set_num_threads(2)
        runner = load_model(config, ranks=ranks).runner
        batch = runner.batch([PlainRow([1, 2], 0, [0], 1, generated=False)])
        used = runner.launch(batch, lambda logits: torch.tensor(torch.get_num_threads())).collect()
        assert (int(used), torch.get_num_threads()) == (1, 2)
    finally:
        torch.set_num_threads(threads)
        dist.destroy_process_group()
