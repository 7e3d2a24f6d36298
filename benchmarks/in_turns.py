"""Things that are timed in turns: seconds of each, ratios within a round, and their spread.

Shared machines drift by a factor of two within seconds. So whatever is compared takes turns, ratios are taken
between neighbours, and what is printed is their median with the quartiles, and the ratio of the bests.
"""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Action = Callable[[], object]
Measure = Callable[[], float]
Found = Mapping[str, Sequence[float]]


def seconds(action: Action) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def best(action: Action, *, within: float) -> float:
    """The least of as many as there are in so many seconds; one before them warms up."""
    action()
    times, ends = [seconds(action)], time.perf_counter() + within
    while time.perf_counter() < ends:
        times.append(seconds(action))
    return min(times)


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


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def spread(values: Sequence[float]) -> str:
    """The median, and from where to where."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def percentiles(values: Sequence[float], *percents: int) -> list[float]:
    cuts = statistics.quantiles(values, n=100)
    return [cuts[percent - 1] for percent in percents]


def show_times(found: Found) -> None:
    print("| measured | best ms | median ms | quartiles |\n|---|---|---|---|")
    for name, times in found.items():
        low, middle, high = (1e3 * each for each in statistics.quantiles(times, n=4))
        print(f"| {name} | {1e3 * min(times):.1f} | {middle:.1f} | {low:.1f} – {high:.1f} |")


def show_ratios(found: Found, pairs: Mapping[str, tuple[str, str]]) -> None:
    """By name, whose times are over whose."""
    print("\n| ratio within a round | median | quartiles | of the bests |\n|---|---|---|---|")
    for name, (above, below) in pairs.items():
        low, middle, high = statistics.quantiles(ratios(found[above], found[below]), n=4)
        bests = min(found[above]) / min(found[below])
        print(f"| {name} | {middle:.3f} | {low:.3f} – {high:.3f} | {bests:.3f} |", flush=True)
