"""The draft pool as a discrete-event simulation (simpy): the check of the queueing formula in `pool.py`.

With exponential times it must agree with the formula; with the times as they are, nearly constant, it shows
how much shorter real waits are.
"""

import random
from collections.abc import Generator
from typing import Any, Literal

import simpy

from ssd.planning.pool import Pool, PoolLoad

Spread = Literal["exponential", "constant"]


def simulate_pool(pool: Pool, *, spread: Spread, rounds: int = 20_000, seed: int = 0) -> PoolLoad:
    draw = random.Random(seed)
    environment = simpy.Environment()
    drafts = simpy.Resource(environment, capacity=pool.num_drafts)
    waits: list[float] = []

    def lasting(mean: float) -> float:
        return draw.expovariate(1 / mean) if spread == "exponential" and mean else mean

    def target() -> Generator[Any, Any, None]:
        # Targets do not start in step with each other.
        yield environment.timeout(draw.random() * (pool.think + pool.service))
        while len(waits) < rounds:
            yield environment.timeout(lasting(pool.think))
            asked = environment.now
            with drafts.request() as request:
                yield request
                waits.append(environment.now - asked)
                yield environment.timeout(lasting(pool.service))

    running = [environment.process(target()) for _ in range(pool.num_targets)]
    environment.run(until=environment.all_of(running))
    # The first tenth is still under the influence of the start.
    settled = waits[rounds // 10 :]
    wait = sum(settled) / len(settled)
    alone = pool.think + pool.service
    served = pool.num_targets / (alone + wait)
    return PoolLoad(wait, served * pool.service / pool.num_drafts, alone / (alone + wait))
