"""Whose outcomes correct whose chances: each tenant has counts of its own, numbered from 1.

What one tenant reports, wrong or merely unusual, must not change what the draft expects of another. All start
from the same prior, the model's own word (calibration.py). There are as many numbers as sequences; a tenant
without sequences keeps its own until it is forgotten or somebody else needs it. Knows names and numbers.
"""

from collections import OrderedDict
from collections.abc import Container


class Books:
    def __init__(self, count: int) -> None:
        self._free = list(range(count, 0, -1))
        self._numbers: OrderedDict[str, int] = OrderedDict()
        """By tenant; who had one assigned longest ago comes first."""

    def take(self, name: str, present: Container[str]) -> tuple[int, bool]:
        """A tenant's number, and whether it is new to it. Those of tenants that are present stay."""
        number = self._numbers.get(name)
        is_new = number is None
        if number is None:
            if not self._free:
                self.forget(next(each for each in self._numbers if each not in present))
            number = self._numbers[name] = self._free.pop()
        self._numbers.move_to_end(name)
        return number, is_new

    def forget(self, name: str) -> None:
        number = self._numbers.pop(name, None)
        if number is not None:
            self._free.append(number)
