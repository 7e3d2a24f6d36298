"""The pools: zeroed, with room behind the last block, and taking memory only as they are used."""

import torch

from ssd.kvcache.pool import KVPool, PoolShape

CPU = torch.device("cpu")


def test_slots_are_zero_and_padding_has_a_place_of_its_own() -> None:
    pool = KVPool(PoolShape(2, 3, 8, 5, 16, torch.bfloat16, CPU, 32))
    assert pool.keys.shape == pool.values.shape == (2, 3, 5 * 16 + 32, 8)
    assert not pool.keys.any()
    assert not pool.values.any()
    assert pool.scratch_slot == 80


def test_bytes_of_a_block_count_keys_and_values_of_every_layer() -> None:
    assert PoolShape(2, 3, 8, 5, 16, torch.bfloat16, CPU, 0).bytes_per_block == 2 * 2 * 3 * 8 * 16 * 2


def test_an_unused_pool_takes_no_memory() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = resident()
    pool = KVPool(PoolShape(8, 8, 128, 4096, 16, torch.bfloat16, CPU, 512))
    assert pool.keys.nbytes > 500 << 20
    assert resident() - before < 100 << 20
