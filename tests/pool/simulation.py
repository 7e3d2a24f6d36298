"""Runs a scenario: faults, then a time in which the pool must recover, then its end; and checks meanwhile.

    0 s               a pool starts
    0.5 … 3 s         faults begin; the last may take some seconds more
    then              every target must have hits again within `_PATIENCE` seconds
    then              targets stop: texts and trees of both sides must be equal
    then              targets are gone: after 10 s drafts must hold nothing of them

A violation ends it. Everything follows from the seed.
"""

import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.pool.checks import (
    Shares,
    check_agreement,
    check_draft,
    check_one,
    check_target,
    integrity,
    require,
)
from tests.pool.draft import DraftHost
from tests.pool.faults import KINDS
from tests.pool.links import Line, Network
from tests.pool.scenario import Scenario
from tests.pool.target import Target
from tests.pool.versions import THIS, Version
from tests.pool.world import Process, ViolationError, World

_ROOT = Path(__file__).parents[2]
_CHECKED = 24
"""A process's tables are checked after every 24th of its events."""
_COMPARED = 2
"""One sequence's text and tree are compared after every second event of a target."""
_HARMLESS = {"other answers", "aborted requests", "preempted requests"}
"""Faults that break no connection: a name server may answer in part, and a client asks again."""
_POLL = 0.25
_PATIENCE, _REFUSED_SECONDS = 20.0, 30.0
"""Seconds in which every target must have hits again: twice a timeout, and the longest time until a lost
draft is tried again."""
_BEGIN_SECONDS = 2.0
"""In which a new request need not have had hits."""
_QUIET_SECONDS = 8.0
"""After rounds have stopped and the trees are fully grown, every message has arrived within this time."""
_NOTICE_SECONDS = 1.0
"""A few rounds. A side notices a lost frame only when a later one arrives, so rounds continue for this long
before texts and trees are compared."""
_GONE_SECONDS = 10.0
"""docs/fleet.md: after that a draft holds nothing of a target that is gone."""


class Names:
    """In place of DNS: names all drafts, unless it is spoilt."""

    def __init__(self, world: World, hosts: Sequence[str]) -> None:
        self._world, self._hosts = world, hosts
        self._spoilt_until, self._chance = 0.0, random.Random(0)

    def spoil(self, chance: random.Random, seconds: float) -> None:
        self._chance, self._spoilt_until = chance, self._world.now + seconds

    def look_up(self, _name: str) -> list[str]:
        if self._world.now >= self._spoilt_until:
            return [*self._hosts]
        count = self._chance.randint(0, len(self._hosts))
        if not count:
            raise OSError("no answer")
        return self._chance.sample(self._hosts, count)


@dataclass(frozen=True, slots=True)
class Found:
    """What a run of a scenario was like."""

    violation: str
    """Empty: none."""
    at: float
    trace: str
    events: int
    messages: Counter[str]
    """By direction; those of clients that flood apart."""
    num_bytes: int
    faults: Counter[str]
    recovered: float
    """Seconds from the end of faults until every target had hits again."""
    trees: int
    """Trees that were compared."""
    rows: int
    """Rows of the longest window in which all tenants of a draft wanted more."""
    share: float
    """Largest difference of shares in such windows, as a part of what is allowed."""
    tokens: int


class Simulation:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = world = World(scenario.seed)
        self.network = Network(world, scenario.latency)
        clocks = world.random_of("clocks")
        self._clock_at = partial(clocks.uniform, 0.0, 1e6)
        self.drafts = [DraftHost(self.network, plan, self._clock_at) for plan in scenario.drafts]
        self._hosts = {each.plan.address: each for each in self.drafts}
        self.names = Names(world, [each.host for each in self.drafts])
        self.targets = list[Target]()
        self._ended = list[Target]()
        for plan in scenario.targets:
            self.targets.append(self._target(plan.name))
        self._shares = {each.host: Shares(each) for each in self.drafts}
        self._lies: dict[tuple[str, str], float] = {}
        self.lying_tenants = set[str]()
        """Of targets that lied: sequences that they opened without knowing may fill a draft that is tight."""
        self._num_checked = Counter[str]()
        self._faults_end = 0.0
        self._recovered, self._trees = 0.0, 0
        self._patience = _PATIENCE
        world.after_event = self._check

    # What faults ask for.

    def hosts(self) -> list[str]:
        return [*(each.plan.name for each in self.targets), *(each.host for each in self.drafts)]

    def addresses(self) -> list[str]:
        return [each.plan.address for each in self.drafts]

    def note_lies(self, line: Line, seconds: float) -> None:
        """Lies, or losses, on a line: what is open on it may be wrong until it is opened again."""
        hosts = line.engine.host, line.draft.host
        self._lies[hosts] = max(self._lies.get(hosts, 0.0), self.world.now + seconds)

    def note_refusal(self) -> None:
        """A draft of another version was refused: it is asked again much later than one that was lost."""
        self._patience = _PATIENCE + _REFUSED_SECONDS

    def replace_target(self, place: int, version: Version, *, machine: bool) -> None:
        gone = self.targets[place]
        gone.kill(machine=machine)
        self._ended.append(gone)
        self.targets[place] = self._target(gone.plan.name, version)

    def _target(self, name: str, version: Version = THIS) -> Target:
        plan = next(each for each in self.scenario.targets if each.name == name)
        number = len(self._ended)
        return Target(
            self.network,
            plan,
            self.addresses(),
            self.names.look_up,
            started_at=self._clock_at(),
            instance=f"{name} {number}",
            version=version,
        )

    # A run.

    def run(self) -> Found:
        violation = ""
        with _errors_logged() as errors:
            try:
                self._strike()
                self._recover(errors)
                self._settle()
                self._leave()
                require(not errors, f"an error was logged: {errors[:1]}")
            except ViolationError as error:
                violation = str(error)
            except Exception as error:  # Any exception would have ended a real process.
                violation = f"{type(error).__name__}: {error} ({_place_of(error)})"
        return self._found(violation)

    def _strike(self) -> None:
        world = self.world
        for number, strike in enumerate(self.scenario.strikes):
            world.run(strike.at - world.now)
            lasts = KINDS[strike.kind](self, world.random_of(f"fault {number}"))
            if lasts is not None:
                world.inject(strike.kind)
                self._faults_end = max(self._faults_end, world.now + lasts)
        world.run(max(0.0, self._faults_end - world.now) + 0.01)
        self._restart_dead_drafts()
        for line in self.network.lines:
            # A loss that waits for frames of an idle connection must not strike later.
            line.to_draft.changes.clear()
            line.to_engine.changes.clear()

    def _restart_dead_drafts(self) -> None:
        """Starts every draft that is not running. A draft that was told to end while it was frozen ends only
        when it thaws, perhaps after its restart was due."""
        for host in self.drafts:
            if not host.is_alive:
                host.start()

    def _recover(self, errors: Sequence[str]) -> None:
        """Runs until every target has recovered."""
        ended = self.world.now
        while not all(self._has_recovered(each, ended) for each in self.targets):
            require(not errors, f"an error was logged: {errors[:1]}")
            self._note_lies_about_hello()
            if self.world.now > ended + self._patience:
                slow = [each.plan.name for each in self.targets if not self._has_recovered(each, ended)]
                raise ViolationError(f"no hits {self._patience:.0f} s after the last fault: {slow}")
            self.world.run(_POLL)
            self._restart_dead_drafts()
        self._recovered = self.world.now - ended

    def _note_lies_about_hello(self) -> None:
        for target in self.targets:
            refused = [each.name for each in target.client.pool.replicas if each.refusal]
            if any((target.plan.name, self._hosts[name].host) in self._lies for name in refused):
                self.note_refusal()

    def _has_recovered(self, target: Target, ended: float) -> bool:
        """Whether its sequences hit; where there is no room for all, one of its tenant.

        Where there are too few rows for all, one of any target: what each tenant has then, `Shares` checks.
        """
        if target.speculator.is_resting:
            return True
        if self.scenario.is_crowded:
            return any(each.hit_at > ended for each in self.targets)
        if not self.scenario.is_roomy:
            mine = [each for each in self.targets if each.tenant == target.tenant]
            return target.tenant in self.lying_tenants or any(each.hit_at > ended for each in mine)
        # Some parameters are declined by every draft.
        taken = [each for number, each in target.requests.items() if not self._is_declined(target, number)]
        asked = [each for each in taken if each.begun_at < self.world.now - _BEGIN_SECONDS]
        return not taken or (target.hit_at > ended and all(each.hit_at > ended for each in asked))

    def _is_declined(self, target: Target, number: int) -> bool:
        session = target.client._sessions.get(number)
        return session is not None and session.replica is None and False in session.declined.values()

    def _settle(self) -> None:
        if self.world.faults["lost frame"]:
            self.world.run(_NOTICE_SECONDS)
        for target in self.targets:
            if self.world.faults.keys() <= _HARMLESS:
                connects = target.client.stats.num_connects
                require(connects <= len(self.drafts), "connections that nothing broke were made anew")
            target.is_stopped = True
        ends = self.world.now + self._seconds_to_grow() + _QUIET_SECONDS
        while True:
            self.world.run(2 * _POLL)
            for target in self.targets:
                target.process.do(target.speculator.take_in)
            try:
                self._trees += sum(check_agreement(each, self._hosts, self._lies) for each in self.targets)
                break
            except ViolationError:
                # A sequence that has just moved is still being read.
                if self.world.now > ends:
                    raise
        for target in self.targets:
            integrity(target)
        for host in self.drafts:
            integrity(host)

    def _seconds_to_grow(self) -> float:
        """How long the slowest draft needs to grow every tree to its limit, if it has all sequences."""
        num_sequences, plans = self.scenario.num_sequences, [each.plan for each in self.drafts]
        return max(
            num_sequences * each.shape().slots * (each.step_seconds / each.width + each.row_seconds)
            for each in plans
        )

    def _leave(self) -> None:
        for place, target in enumerate(self.targets):
            target.kill(machine=place % 2 == 0)
        self.world.run(_GONE_SECONDS)
        for host in self.drafts:
            integrity(host)
            require(not host.scheduler.num_sessions, "a draft holds sessions of targets that are gone")
            require(not [*host.server._peers], "a draft knows targets that are gone")
            require(host.scheduler.kv_usage == 0, "a draft holds KV blocks of targets that are gone")
            require(not host.scheduler.tenants._num_had, "a draft remembers tenants that are gone")
            require(not [*host.scheduler.offers], "a draft keeps room for targets that are gone")

    def _check(self, process: Process) -> None:
        side = self._side_of(process)
        if side is None:
            return
        number = self._num_checked[process.name]
        self._num_checked[process.name] += 1
        if isinstance(side, Target):
            check_target(side)
            if number % _COMPARED == 0:
                self._trees += check_one(side, self._hosts, self._lies, number // _COMPARED)
        else:
            check_draft(side)
            self._shares[side.host].look()
        if number % _CHECKED == _CHECKED - 1:
            integrity(side)

    def _side_of(self, process: Process) -> Target | DraftHost | None:
        target = next((each for each in self.targets if each.process is process), None)
        return target or next((each for each in self.drafts if each.process is process), None)

    def _found(self, violation: str) -> Found:
        world = self.world
        return Found(
            violation,
            world.now,
            world.trace,
            world.num_events,
            world.messages,
            world.num_bytes,
            world.faults,
            self._recovered,
            self._trees,
            max(each.longest for each in self._shares.values()),
            max(each.worst for each in self._shares.values()),
            sum(each.num_tokens for each in (*self.targets, *self._ended)),
        )


def _place_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    path = Path(trace.tb_frame.f_code.co_filename)
    place = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path.name
    return f"{place}:{trace.tb_lineno}"


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        place = _place_of(record.exc_info[1]) if record.exc_info and record.exc_info[1] else ""
        error = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self.found.append(f"{record.getMessage()}{error} {place}")


@contextmanager
def _errors_logged() -> Iterator[list[str]]:
    """The client logs errors that it survives: here they count. Warnings are not even made."""
    logger, handler = logging.getLogger("ssd.draft"), _Errors()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.ERROR)
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
