"""Long prompts open in few chunks, and trees of other sequences keep growing meanwhile.

In virtual time, at the price of an H100: a step takes what docs/gpu-kernels.md says of Llama-3.2-1B, and a
prompt's token its arithmetic.
"""

from ssd.draft.server.prefill import ChunkBudget

CHUNK = 2048


def test_a_chunk_is_as_long_as_others_can_bear_and_then_they_grow_as_long() -> None:
    budget = ChunkBudget(CHUNK)
    assert budget.tokens(others_grow=False) == CHUNK
    assert budget.tokens(others_grow=True) == 256, "nothing is measured yet"
    budget.note_launch()
    assert budget.tokens(others_grow=True) == 0
    budget.note_end(256, 0.012, 0.002)
    assert budget.tokens(others_grow=True) == 0
    for _ in range(5):
        budget.note_end(0, 0.002, 0.002)
    # 256 tokens took 10 ms.
    assert budget.tokens(others_grow=True) == 512
