"""In which order those who are compared take turns: a Williams design.

Each has every place, and follows every other, equally often over `period` turns: whatever one leaves behind
(warm caches, a busy draft, heat) falls on all others alike, which turning a circle would not do.
"""

from collections.abc import Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


def period(count: int) -> int:
    """After so many turns all is even: as many as there are, or twice that if they are odd in number."""
    return 1 if count < 2 else count * (1 + count % 2)


def in_turn(items: Sequence[_Item], turn: int) -> list[_Item]:
    """0 1 n−1 2 n−2 …, moved on by one each turn; of an odd number also backwards."""
    count = len(items)
    place = turn % period(count)
    zigzag = [(step + 1) // 2 if step % 2 else (count - step // 2) % count for step in range(count)]
    order = [items[(each + place) % count] for each in zigzag]
    return order[::-1] if place >= count else order
