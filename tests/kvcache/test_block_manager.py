import pytest

from ssd.kvcache.block_manager import BlockManager, IntegrityError
from tests.kvcache.matching import num_matched

BLOCK = 4


def manager(num_blocks: int = 8, *, caching: bool = True) -> BlockManager:
    return BlockManager(num_blocks, BLOCK, enable_prefix_caching=caching)


def run(blocks: BlockManager, seq_id: int, tokens: list[int], cache_key: str = "") -> int:
    """Allocate, compute all, commit; return the reused tokens."""
    num_cached = blocks.allocate(seq_id, tokens, cache_key=cache_key)
    blocks.commit(seq_id, tokens, len(tokens), len(tokens))
    blocks.check_integrity()
    return num_cached


def prompt(num_tokens: int, start: int = 0) -> list[int]:
    return list(range(start, start + num_tokens))


def test_sizes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BlockManager(0, 4)


# --- allocate and grow ---


def test_allocate_covers_all_tokens_with_consecutive_blocks() -> None:
    blocks = manager()
    assert blocks.allocate(1, prompt(9)) == 0
    assert list(blocks.block_table(1)) == [0, 1, 2]
    assert (blocks.num_free, blocks.usage, blocks.num_covered(1)) == (5, 3 / 8, 12)


def test_allocate_refuses_an_id_that_has_blocks() -> None:
    blocks = manager()
    blocks.allocate(1, [1])
    with pytest.raises(ValueError, match="already has blocks"):
        blocks.allocate(1, [1])
    with pytest.raises(ValueError, match="already has blocks"):
        blocks.fork(1, 1, 1)


def test_grow_never_shrinks_and_prefers_the_neighbour() -> None:
    blocks = manager()
    blocks.allocate(1, prompt(2))
    blocks.allocate(2, prompt(2))
    blocks.grow(1, 9)
    blocks.grow(1, 1)
    assert list(blocks.block_table(1)) == [0, 1, 2]
    assert blocks.max_coverable(1) == (3 + 4) * BLOCK


def test_trim_gives_back_what_grow_took_and_grow_finds_it_again() -> None:
    blocks = manager()
    run(blocks, 1, prompt(6))
    for _ in range(3):
        blocks.grow(1, 6 + 9)
        assert list(blocks.block_table(1)) == [0, 1, 2, 3]
        blocks.trim(1, 6)
        assert (list(blocks.block_table(1)), blocks.num_free) == ([0, 1], 6)
        blocks.check_integrity()
    blocks.trim(1, 99)
    blocks.trim(1, 8)
    assert blocks.num_covered(1) == 8


def test_trim_refuses_a_shared_block_and_one_registered_by_a_parent_that_is_gone() -> None:
    blocks = manager()
    blocks.allocate(1, prompt(8))
    blocks.fork(1, 2, 8)
    refuses_to_trim(blocks, 1, 0)
    refuses_to_trim(blocks, 2, 0)
    blocks.commit(1, prompt(8), 8, 8)
    blocks.free(1)
    refuses_to_trim(blocks, 2, 0)
    blocks.trim(2, 4)  # its own tail was never committed


def refuses_to_trim(blocks: BlockManager, seq_id: int, num_tokens: int) -> None:
    table, num_free = list(blocks.block_table(seq_id)), blocks.num_free
    with pytest.raises(ValueError, match="cannot be trimmed"):
        blocks.trim(seq_id, num_tokens)
    assert (list(blocks.block_table(seq_id)), blocks.num_free) == (table, num_free)
    blocks.check_integrity()


# --- prefix cache ---


def test_last_block_is_registered_under_its_own_index() -> None:
    # Known fault elsewhere: the newest block hashed as if it sat at another index of the sequence.
    blocks = manager()
    tokens = prompt(6)
    run(blocks, 1, tokens)
    for token in range(6, 12):
        tokens.append(token)
        blocks.grow(1, len(tokens))
        blocks.commit(1, tokens, len(tokens), len(tokens))
        for num_tokens in range(1, len(tokens) + 1):
            assert num_matched(blocks, tokens[:num_tokens]) == (num_tokens - 1) // BLOCK * BLOCK
    assert num_matched(blocks, [*tokens[:4], *tokens[8:12], 0]) == 4
    assert blocks.allocate(2, [*tokens, 0]) == 12
    assert list(blocks.block_table(2)[:3]) == list(blocks.block_table(1))


def test_only_full_computed_cacheable_blocks_are_registered() -> None:
    blocks = manager()
    tokens = prompt(12)
    blocks.allocate(1, tokens)
    blocks.commit(1, tokens, 3, 12)
    assert num_matched(blocks, prompt(13)) == 0
    blocks.commit(1, tokens, 7, 12)
    assert num_matched(blocks, prompt(13)) == 4
    blocks.commit(1, tokens, 12, 8)
    assert num_matched(blocks, prompt(13)) == 8
    blocks.commit(1, tokens, 99, 99)
    assert num_matched(blocks, prompt(13)) == 12


def test_commit_hashes_each_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = manager(num_blocks=64)
    digest, hashed = blocks._digest, list[int]()

    def counting(parent: bytes, tokens: list[int], index: int) -> bytes:
        hashed.append(index)
        return digest(parent, tokens, index)

    monkeypatch.setattr(blocks, "_digest", counting)
    tokens = prompt(1)
    blocks.allocate(1, tokens)
    for token in range(1, 100):
        tokens.append(token)
        blocks.grow(1, len(tokens))
        blocks.commit(1, tokens, len(tokens), len(tokens))
    assert hashed == list(range(25))


# --- eviction ---


def test_plain_free_blocks_go_before_cached_ones() -> None:
    blocks = manager(num_blocks=4)
    run(blocks, 1, prompt(8))
    blocks.free(1)
    blocks.allocate(2, prompt(8, start=50))
    assert num_matched(blocks, prompt(9)) == 8
    blocks.grow(2, 12)
    assert num_matched(blocks, prompt(9)) == 4


def test_least_recently_freed_goes_first_and_its_tail_before_its_head() -> None:
    blocks = manager(num_blocks=5)
    run(blocks, 1, prompt(8))
    run(blocks, 2, prompt(12, start=50))
    blocks.free(2)
    blocks.free(1)
    matches = []
    blocks.allocate(3, [99])
    for num_tokens in (4, 8, 12, 16, 20):
        blocks.grow(3, num_tokens)
        matches.append((num_matched(blocks, prompt(13, start=50)), num_matched(blocks, prompt(9))))
    assert matches == [(8, 8), (4, 8), (0, 8), (0, 4), (0, 0)]


def test_reuse_makes_a_block_recent_again() -> None:
    blocks = manager(num_blocks=2)
    run(blocks, 1, prompt(4))
    run(blocks, 2, prompt(4, start=50))
    blocks.free(1)
    blocks.free(2)
    blocks.allocate(3, prompt(5))  # holds block of 1, evicts that of 2
    assert num_matched(blocks, prompt(5, start=50)) == 0
    blocks.free(3)
    assert num_matched(blocks, prompt(5)) == 4


def test_blocks_evicted_together_serve_as_one_run() -> None:
    blocks = manager(num_blocks=4)
    run(blocks, 1, prompt(16))
    blocks.free(1)
    blocks.allocate(2, prompt(12, start=50))
    table = list(blocks.block_table(2))
    assert table == list(range(table[0], table[0] + 3))


# --- fork and free ---


# --- check_integrity itself ---


@pytest.mark.parametrize("fault", ["count", "free", "twice", "cached", "one_way", "digests", "two_digests"])
def test_integrity_check_sees(fault: str) -> None:
    blocks = manager()
    run(blocks, 1, prompt(8))
    run(blocks, 2, prompt(8, start=50))
    blocks.free(2)
    table = blocks._tables[1]
    if fault == "count":
        blocks._num_references[table.blocks[0]] += 1
    elif fault == "free":
        blocks._free.put(table.blocks[0])
    elif fault == "twice":
        table.blocks.append(table.blocks[0])
        blocks._num_references[table.blocks[0]] += 1
    elif fault == "cached":
        blocks._cached.popitem()
    elif fault == "one_way":
        blocks._block_of.popitem()
    elif fault == "digests":
        table.digests.extend([b"", b""])
    else:
        blocks._block_of[b"other"] = table.blocks[0]
    with pytest.raises(IntegrityError):
        blocks.check_integrity()
