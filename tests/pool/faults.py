"""Faults of the simulated pool, by kind. Each is injected at a moment and says when it has ended.

A kind that finds nothing to strike (no connection, no live draft) injects nothing. Everything that is drawn
comes from the fault's own stream, so a fault does not depend on those before it.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.pool.draft import DraftHost, DraftPlan
from tests.pool.hostile import Hostile
from tests.pool.lies import LIES, Liar
from tests.pool.versions import THIS, VERSIONS, Version

if TYPE_CHECKING:
    from tests.pool.simulation import Simulation

Injected = float | None
"""Seconds until the fault has ended; None: nothing was injected."""
LIES_TOLD = (*LIES, "old frame")


def _seconds(chance: random.Random, most: float) -> float:
    """Short ones are more frequent than long ones."""
    return float(most ** (2 * chance.random()) / most)


def connection(simulation: "Simulation", chance: random.Random) -> Injected:
    """A connection breaks."""
    if not simulation.network.lines:
        return None
    chance.choice(simulation.network.lines).reset()
    return 0.0


def lost_frame(simulation: "Simulation", chance: random.Random) -> Injected:
    """Up to three frames of one direction get lost, and the connection stays."""
    if not simulation.network.lines:
        return None
    line = chance.choice(simulation.network.lines)
    way, left = chance.choice((line.to_draft, line.to_engine)), chance.randint(1, 3)

    def lose(frame: bytes) -> Sequence[bytes]:
        nonlocal left
        left -= 1
        if left < 0:
            return [frame]
        if way is line.to_draft and b"close" in frame:
            # The draft keeps the sequence, and nothing later tells it to stop: that is no fault of its own.
            simulation.note_lies(line, 0.0)
        return []

    way.changes.append(lose)
    return 0.0


def delay(simulation: "Simulation", chance: random.Random) -> Injected:
    """Everything to and from a host takes longer for a while."""
    host, seconds = chance.choice(simulation.hosts()), _seconds(chance, 3.0)
    slow, added = simulation.network.slow, 10 ** chance.uniform(-2.5, 0.0)
    slow[host] = slow.get(host, 0.0) + added

    def end() -> None:
        slow[host] -= added

    simulation.world.after(seconds, end)
    return seconds + added


def overtaking(simulation: "Simulation", chance: random.Random) -> Injected:
    """Frames of different connections overtake each other."""
    seconds, jitter = _seconds(chance, 3.0), chance.uniform(0.01, 0.3)
    network = simulation.network
    network.jitter += jitter

    def end() -> None:
        network.jitter -= jitter

    simulation.world.after(seconds, end)
    return seconds + jitter


def partition(simulation: "Simulation", chance: random.Random) -> Injected:
    """Some targets cannot reach some drafts, in one direction or both."""
    targets = [each.plan.name for each in simulation.targets]
    drafts = [each.host for each in simulation.drafts]
    seconds, network = _seconds(chance, 7.0), simulation.network
    ways = list[tuple[str, str]]()
    for target in chance.sample(targets, chance.randint(1, len(targets))):
        for draft in chance.sample(drafts, chance.randint(1, len(drafts))):
            both = [(target, draft), (draft, target)]
            ways += chance.choice((both, both, both[:1], both[1:]))
    for way in ways:
        network.cut(*way)

    def end() -> None:
        for way in ways:
            network.mend(*way)

    simulation.world.after(seconds, end)
    return seconds


def frozen_draft(simulation: "Simulation", chance: random.Random) -> Injected:
    found = [each for each in simulation.drafts if each.is_alive]
    if not found:
        return None
    seconds = _seconds(chance, 6.0)
    chance.choice(found).freeze(seconds)
    return seconds


def frozen_target(simulation: "Simulation", chance: random.Random) -> Injected:
    seconds = _seconds(chance, 6.0)
    chance.choice(simulation.targets).freeze(seconds)
    return seconds


def _restart(simulation: "Simulation", chance: random.Random, most: float, *, machine: bool) -> Injected:
    found = [each for each in simulation.drafts if each.is_alive]
    if not found:
        return None
    host = chance.choice(found)
    if machine:
        host.vanish()
    else:
        host.kill()
    seconds = 0.2 + _seconds(chance, most)

    def start() -> None:
        if not host.is_alive:
            host.start()

    simulation.world.after(seconds, start)
    return seconds


def killed_draft(simulation: "Simulation", chance: random.Random) -> Injected:
    return _restart(simulation, chance, 3.0, machine=False)


def lost_machine(simulation: "Simulation", chance: random.Random) -> Injected:
    """A draft's host dies without a word."""
    return _restart(simulation, chance, 6.0, machine=True)


def drained_draft(simulation: "Simulation", chance: random.Random) -> Injected:
    """At SIGTERM it may first take no more sequences for a while."""
    found = [each for each in simulation.drafts if each.is_alive]
    if not found:
        return None
    host, drains = chance.choice(found), chance.choice((0.0, 0.5))
    return _replace_draft(simulation, host, drains, 0.3 + _seconds(chance, 2.0), host.plan, host.version)


def upgraded_draft(simulation: "Simulation", chance: random.Random) -> Injected:
    """A draft is drained, and comes back with other settings and as another version.

    One that speaks no version of the targets' is rolled back.
    """
    found = [each for each in simulation.drafts if each.is_alive]
    if not found:
        return None
    host, seconds = chance.choice(found), 0.3 + _seconds(chance, 2.0)
    # Not narrower than at first, nor with a smaller chunk: a roomy pool would be too small for its sequences.
    first = next(each for each in simulation.scenario.drafts if each.address == host.plan.address)
    plan = replace(
        host.plan,
        width=first.width + chance.choice((0, 4, 8)),
        chunk=max(first.chunk, chance.choice((32, 64))),
    )
    version, before = chance.choice(VERSIONS), host.plan
    lasts = _replace_draft(simulation, host, 0.0, seconds, plan, version)
    if version.is_understood:
        return lasts
    simulation.note_refusal()
    stays = 1.0 + _seconds(chance, 2.0)

    def roll_back() -> None:
        _replace_draft(simulation, host, 0.0, 0.3, before, THIS)

    simulation.world.after(lasts + stays, roll_back)
    return lasts + stays + 1.0


def _replace_draft(
    simulation: "Simulation",
    host: DraftHost,
    drains: float,
    away: float,
    plan: DraftPlan,
    version: Version,
) -> float:
    """Ends a draft, and starts another at its address. Returns how long that takes."""
    if host.is_alive:
        host.drain(drains)

    def start() -> None:
        if not host.is_alive:
            host.start(plan, version)

    simulation.world.after(drains + away, start)
    return drains + away


def killed_target(simulation: "Simulation", chance: random.Random) -> Injected:
    """Another takes its place, perhaps of a later version."""
    place = chance.randrange(len(simulation.targets))
    version = chance.choice([each for each in VERSIONS if each.is_understood])
    simulation.replace_target(place, version, machine=chance.random() < 0.5)
    return 0.0


def lying_draft(simulation: "Simulation", chance: random.Random) -> Injected:
    """For a while some of a draft's frames are lies."""
    found = list(simulation.network.lines)
    if not found:
        return None
    host, seconds = chance.choice(found).draft.host, _seconds(chance, 2.0)
    return _lying(simulation, chance, host, seconds, to_draft=False)


def lying_target(simulation: "Simulation", chance: random.Random) -> Injected:
    target, seconds = chance.choice(simulation.targets), _seconds(chance, 2.0)
    found = _lying(simulation, chance, target.plan.name, seconds, to_draft=True)
    if found is not None:
        simulation.lying_tenants.add(target.tenant)
    return found


def _lying(
    simulation: "Simulation", chance: random.Random, host: str, seconds: float, *, to_draft: bool
) -> Injected:
    kinds = chance.sample(LIES_TOLD, chance.randint(1, 3))
    world = simulation.world
    liar = Liar(chance, kinds, chance.choice((0.1, 0.4, 1.0)), lambda kind: world.inject(f"lie: {kind}"))
    lines = simulation.network.of(host)
    if not lines:
        return None
    for line in lines:
        simulation.note_lies(line, seconds)
        (line.to_draft if to_draft else line.to_engine).changes.append(liar)

    def end() -> None:
        liar.is_over = True

    world.after(seconds, end)
    return seconds


def other_answers(simulation: "Simulation", chance: random.Random) -> Injected:
    """For a while DNS answers with some of the addresses, or not at all."""
    seconds = _seconds(chance, 8.0)
    simulation.names.spoil(chance, seconds)
    return seconds


def flood_of_frames(simulation: "Simulation", chance: random.Random) -> Injected:
    """A client with keys of its own sends as much as it can."""
    found = [each for each in simulation.drafts if each.is_alive]
    if not found:
        return None
    seconds = _seconds(chance, 2.0)
    Hostile(simulation.network, chance, chance.choice(found).plan.address, seconds)
    return seconds


def flood_of_sequences(simulation: "Simulation", chance: random.Random) -> Injected:
    """A target has far more requests than usual."""
    target, seconds = chance.choice(simulation.targets), _seconds(chance, 2.0)
    added = chance.randint(4, 12)
    target.batch += added

    def end() -> None:
        target.batch -= added
        while len(target.requests) > target.batch and target.process.is_alive:
            target.abort()

    target.process.after(seconds, end)
    return seconds


def aborted_requests(simulation: "Simulation", chance: random.Random) -> Injected:
    target = chance.choice(simulation.targets)
    for _ in range(chance.randint(1, 3)):
        target.process.do(target.abort)
    return 0.0


def preempted_requests(simulation: "Simulation", chance: random.Random) -> Injected:
    target = chance.choice(simulation.targets)
    for _ in range(chance.randint(1, 2)):
        target.process.do(target.preempt)
    return 0.0


def jumping_clock(simulation: "Simulation", chance: random.Random) -> Injected:
    processes = [each.process for each in simulation.targets] + [each.process for each in simulation.drafts]
    chance.choice(processes).jump(10 ** chance.uniform(-1.0, 3.0))
    return 0.0


def replaced_pool(simulation: "Simulation", chance: random.Random) -> Injected:
    """A target is told other sources of drafts, which take over once one of them is ready."""
    target = chance.choice(simulation.targets)
    target.process.do(lambda: target.replace_sources(simulation.addresses()))
    return 0.0


Inject = Callable[["Simulation", random.Random], Injected]
KINDS: dict[str, Inject] = {
    each.__name__.replace("_", " "): each
    for each in (
        connection,
        lost_frame,
        delay,
        overtaking,
        partition,
        frozen_draft,
        frozen_target,
        killed_draft,
        lost_machine,
        drained_draft,
        upgraded_draft,
        killed_target,
        lying_draft,
        lying_target,
        other_answers,
        flood_of_frames,
        flood_of_sequences,
        aborted_requests,
        preempted_requests,
        jumping_clock,
        replaced_pool,
    )
}
