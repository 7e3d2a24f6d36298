"""Times of forwards for the round model: by rows, alone and while the other model runs.

Does not know whether they come from measurements or data sheets.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forward:
    """Seconds by rows: `floor` while memory is the limit, then proportional to the rows."""

    floor: float
    per_row: float = 0.0
    overhead: float = 0.0
    """Fixed time that every forward takes."""
    slope: float = 0.0
    """Additional time for each row after the first."""

    def __post_init__(self) -> None:
        if self.floor + self.overhead <= 0:
            raise ValueError("a forward takes time: give it more than 0 seconds")

    def seconds(self, rows: int) -> float:
        return max(self.floor, self.per_row * rows) + self.overhead + self.slope * (rows - 1)


def line_through(rows: int, seconds: float, more_rows: int, more_seconds: float) -> Forward:
    """A linear model from two measurements, with a slope of at least 0."""
    slope = max(0.0, (more_seconds - seconds) / (more_rows - rows))
    return Forward(floor=max(seconds - slope * (rows - 1), 1e-9), slope=slope)


@dataclass(frozen=True, slots=True)
class PairTimes:
    target: Forward
    draft: Forward
    host: float = 0.0
    """Seconds between two verifications in which the target waits for the host."""
    target_beside: float = 1.0
    """Slowdown of a verification while the draft runs: both read the same memory."""
    draft_beside: float = 1.0
    """Slowdown of a draft step while the target runs."""
