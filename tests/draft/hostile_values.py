"""Values that nobody should send, for any field of a request; walked by the tests of each way in."""

from typing import Any

NUMBERS: tuple[Any, ...] = (
    *(
        -1,
        0,
        1,
        2**31 - 1,
        2**31,
        2**32,
        2**53 + 1,
        2**63 - 1,
        2**63,
        2**64 - 1,
        2**64,
        2**70,
        -(2**63),
        -(2**70),
    ),
    *(0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf"), float("-inf")),
)
TEXTS = ("", "x", "\0", "\ud800", "ä" * 300, "x" * 100_000)
LISTS: tuple[Any, ...] = (
    [],
    *([each] for each in NUMBERS),
    list(range(5000)),
    [-1] * 5000,
    [[]],
    [[-1]],
    [[2**31]],
    [[2**70]],
    [[1] * 70_000],
    [[1, 2]] * 5000,
    [[7] * 500] * 300,
    ["x"] * 5000,
    ["\U0001f980" * 256] * 256,
    [(5, float("nan"))],
    [(2**40, 1.0)],
)
MAPS: tuple[Any, ...] = (
    {},
    {"5": float("nan")},
    {"-1": 1.0},
    {str(2**40): 1.0},
    {"5": 1e9},
    {str(each): 1.0 for each in range(2000)},
    {5: 1.0},
)
VALUES: tuple[Any, ...] = (None, True, False, b"", *NUMBERS, *TEXTS, *LISTS, *MAPS)
