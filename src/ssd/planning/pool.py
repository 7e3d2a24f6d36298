"""Drafts that many targets share: how long a target waits for one, and how many devices the drafts need.

Two ways to share. A draft that grows the trees of several targets in one forward (`Site.ssd(sharers=…)`)
makes nobody wait, until its forwards get longer. A draft that serves one target at a time is a queue: N
targets, each computing for a while on its own (a verification) and then wanting a draft, c drafts that each
serve one. With exponential times that is the machine-repairman model, whose formula is exact; real times
vary less, so real waits are shorter.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pool:
    num_targets: int
    num_drafts: int
    think: float
    """Seconds a target works on its own between two wishes for a draft."""
    service: float
    """Seconds a draft works on one wish."""

    def __post_init__(self) -> None:
        if self.num_targets < 1 or self.num_drafts < 1:
            raise ValueError("a pool needs at least one target and one draft")
        if self.think < 0 or self.service <= 0:
            raise ValueError("a wish takes a draft time: give seconds above 0")


@dataclass(frozen=True, slots=True)
class PoolLoad:
    wait: float
    """Seconds until a draft takes a wish up, on average."""
    utilisation: float
    """Share of the drafts' time that is used."""
    speed: float
    """A target's rounds a second, relative to one with a draft of its own."""


def repairman(pool: Pool) -> PoolLoad:
    """The machine-repairman formula (M/M/c//N): the chance of n wishes being there, for every n."""
    n_targets, drafts = pool.num_targets, pool.num_drafts
    ratio = pool.service / pool.think if pool.think else float("inf")
    if ratio == float("inf"):
        weights = [0.0] * n_targets + [1.0]
    else:
        weights = [1.0]
        for there in range(1, n_targets + 1):
            weights.append(weights[-1] * (n_targets - there + 1) * ratio / min(there, drafts))
            if weights[-1] > 1e200:
                weights = [each * 1e-200 for each in weights]
    total = sum(weights)
    chances = [each / total for each in weights]
    num_there = sum(n * chance for n, chance in enumerate(chances))
    busy = sum(min(n, drafts) * chance for n, chance in enumerate(chances))
    throughput = busy / pool.service
    wait = max(0.0, num_there / throughput - pool.service)
    alone = pool.think + pool.service
    return PoolLoad(wait, busy / drafts, alone / (alone + wait))


def drafts_needed(num_targets: int, think: float, service: float, *, least_speed: float = 0.95) -> int:
    """The fewest drafts with which targets keep that share of the speed that a draft of their own gives."""
    low, high = 1, num_targets
    while low < high:
        middle = (low + high) // 2
        if repairman(Pool(num_targets, middle, think, service)).speed >= least_speed:
            high = middle
        else:
            low = middle + 1
    return low
