"""Where tokens go: no row twice, none lost, and tiles that do not depend on company."""

from hypothesis import given
from hypothesis import strategies as st

from ssd.attention.inputs import PlainInput, SequenceInput
from ssd.runtime.layout import Tiling, packed_layout, tiled_layout

ROWS = st.lists(
    st.builds(
        lambda count, generated: PlainInput([0] * count, 0, [0], 1, generated),
        st.integers(1, 40),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(ROWS)
def test_packed_rows_are_dense(rows: list[SequenceInput]) -> None:
    layout = packed_layout(rows)
    used = [
        first + i for row, first in zip(rows, layout.first_rows, strict=True) for i in range(len(row.tokens))
    ]
    assert used == list(range(layout.num_rows))
    assert layout.tiles == ()


@given(ROWS)
def test_tiled_rows_sit_in_tiles_of_their_own_kind(rows: list[SequenceInput]) -> None:
    layout = tiled_layout(rows, Tiling(decode=16, prefill=32))
    tile_of = [size for size in layout.tiles for _ in range(size)]
    assert len(tile_of) == layout.num_rows
    used: set[int] = set()
    for row, first in zip(rows, layout.first_rows, strict=True):
        places = range(first, first + len(row.tokens))
        assert {tile_of[place] for place in places} == {16 if row.generated else 32}
        assert used.isdisjoint(places)
        used.update(places)
    num_generated = sum(len(row.tokens) for row in rows if row.generated)
    num_prompt = sum(len(row.tokens) for row in rows if not row.generated)
    assert layout.tiles.count(16) == -(-num_generated // 16)
    assert layout.tiles.count(32) == -(-num_prompt // 32)
