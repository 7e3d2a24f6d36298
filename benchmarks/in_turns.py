"""Measures that take turns, so that drift of a shared machine affects all alike; and percentiles."""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence

Measure = Callable[[], float]


def take_turns(measures: Mapping[str, Measure], rounds: int, *, warm_up: int = 1) -> dict[str, list[float]]:
    """What each says in each round; their order is drawn. Rounds to warm up are not kept."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    draw = random.Random(0)
    for number in range(-warm_up, rounds):
        for name in draw.sample(list(measures), len(measures)):
            value = measures[name]()
            if number >= 0:
                found[name].append(value)
    return found


def percentiles(values: Sequence[float], *percents: int) -> list[float]:
    cuts = statistics.quantiles(values, n=100)
    return [cuts[percent - 1] for percent in percents]
