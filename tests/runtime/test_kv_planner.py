"""How memory is shared between texts and trees: a draft needs trees, a target's texts come first."""

from pathlib import Path

import pytest
import torch

from ssd.config import RunnerConfig
from ssd.kvcache.pool import NODES_PER_TREE
from ssd.models.checkpoint import open_checkpoint
from ssd.runtime.kv_planner import KVPlanner

CPU = torch.device("cpu")
LENGTH, BLOCK = 256, 16


@pytest.fixture
def one_text(tiny_llama: Path) -> int:
    """Bytes of a text of that length."""
    return LENGTH // BLOCK * room(tiny_llama).one_block.bytes_per_block


def room(model: Path, **settings: int) -> KVPlanner:
    config = RunnerConfig(model=str(model), block_size=BLOCK, max_num_seqs=1, **settings)  # type: ignore[arg-type]
    return KVPlanner(config, open_checkpoint(str(model)).config, torch.float32, CPU)


def test_a_target_has_trees_of_what_its_texts_leave(tiny_llama: Path, one_text: int) -> None:
    exact = room(tiny_llama, kv_cache_bytes=one_text, max_model_len=LENGTH, num_trees=4)
    assert exact.on_host().num_trees == 0
    assert exact.max_model_len(exact.on_host()) == LENGTH
    ample = room(tiny_llama, kv_cache_bytes=16 * one_text, max_model_len=LENGTH, num_trees=4)
    assert ample.on_host().num_trees == 4
    assert ample.max_model_len(ample.on_host()) == LENGTH


def test_a_draft_has_a_tree_at_least(tiny_llama: Path, one_text: int) -> None:
    tight = room(tiny_llama, kv_cache_bytes=one_text, num_trees=4, least_trees=1)
    assert tight.on_host().num_trees == 1


def test_a_targets_trees_take_an_eighth_of_its_memory_at_most(tiny_llama: Path, one_text: int) -> None:
    memory = 512 * one_text
    shape = room(tiny_llama, kv_cache_bytes=memory, max_model_len=LENGTH, num_trees=1 << 20).on_host()
    tree = NODES_PER_TREE * shape.bytes_per_slot
    assert memory / 8 - tree < shape.num_trees * tree <= memory / 8
