"""How long forwards take, as the round model needs it: by rows, alone and beside the other one.

Where the numbers come from, a measurement or a data sheet, is not known here.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forward:
    """Seconds by rows: `floor` while memory is the limit, beyond that in proportion to the rows."""

    floor: float
    per_row: float = 0.0
    overhead: float = 0.0
    """Added to both: what a forward takes however small it is."""
    slope: float = 0.0
    """Added for each row after the first."""

    def __post_init__(self) -> None:
        if self.floor + self.overhead <= 0:
            raise ValueError("a forward takes time: give it more than 0 seconds")

    def seconds(self, rows: int) -> float:
        return max(self.floor, self.per_row * rows) + self.overhead + self.slope * (rows - 1)


def line_through(rows: int, seconds: float, more_rows: int, more_seconds: float) -> Forward:
    """From two measurements; noise that would make more rows cheaper is taken as flat."""
    slope = max(0.0, (more_seconds - seconds) / (more_rows - rows))
    return Forward(floor=max(seconds - slope * (rows - 1), 1e-9), slope=slope)


@dataclass(frozen=True, slots=True)
class PairTimes:
    target: Forward
    draft: Forward
    host: float = 0.0
    """Seconds between two verifications in which the target waits for the host."""
    target_beside: float = 1.0
    """How much longer a verification takes while a draft works beside it: memory that both read."""
    draft_beside: float = 1.0
    """How much longer a draft's step takes beside a busy target."""
