"""Small forms of the simulator of pools (tests/pool): seeds, replays, a larger pool."""

import os
import subprocess
import sys
import threading
from collections import Counter

import pytest

from tests.pool import large, simulate
from tests.pool.faults import KINDS
from tests.pool.scenario import scenario_of
from tests.pool.simulation import Simulation
from tests.pool.world import World

SEEDS = range(32)
REPLAYED = 7


def test_pools_recover_from_faults_and_change_no_token() -> None:
    faults, messages, num_threads = Counter[str](), 0, threading.active_count()
    for seed in SEEDS:
        found = simulate.run_seed(seed)
        assert not found.violation, simulate.replay(seed)
        faults += found.faults
        messages += found.messages["to drafts"] + found.messages["to targets"]
    assert threading.active_count() == num_threads
    assert len(faults.keys() & KINDS.keys()) >= 15, "these seeds say less than they seem to"
    assert messages >= 30_000


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_of_fault_can_be_injected(kind: str) -> None:
    """By itself, into a pool of any seed that has what it strikes."""
    for seed in range(5):
        simulation = Simulation(scenario_of(seed, kinds=(kind,)))
        found = simulation.run()
        assert not found.violation, simulate.replay(seed, (kind,))
        if found.faults[kind]:
            return
    raise AssertionError("it is never injected")


def test_a_seed_means_the_same_in_every_process() -> None:
    """Whatever Python's hashes are: a failing seed fails again, event by event."""
    program = f"from tests.pool.simulate import run_seed; print(run_seed({REPLAYED}).trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert traces == {simulate.run_seed(REPLAYED).trace}


def test_a_seed_that_fails_says_how_to_run_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.pool.target.Request.is_over", True)
    monkeypatch.setattr("tests.pool.simulation.check_draft", _fail)
    monkeypatch.setattr(sys, "argv", ["simulate", "--seeds", "5", "--faults", "connection"])
    assert simulate.main() == 1
    assert 'python -m tests.pool.simulate --seeds 5 --faults "connection"' in capsys.readouterr().out


@pytest.mark.parametrize("flags", [("--seeds", "4:0"), ("--seeds", "1", "--faults", "killed drafts")])
def test_a_command_that_would_run_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulate", *flags])
    with pytest.raises(SystemExit) as ended:
        simulate.main()
    assert ended.value.code == 2


def _fail(_host: object) -> None:
    raise RuntimeError("as a draft that ends by an error")


def test_figures_of_a_larger_pool() -> None:
    found = large.large_run(4, 3, 48, num_steps=20)
    assert found["connections"] == 12
    assert found["sequences_open"] == [48, 48]
    assert found["moved_after"] < 1.0
    assert found["95_percent_hit_again_after"] is not None
    routed = large.routing_run(40, 10, 2000)
    assert routed["load_over_mean"] < 1.4


def test_events_come_in_the_order_of_their_times() -> None:
    world, seen = World(0), list[str]()
    for name, seconds in (("late", 2.0), ("first", 1.0), ("second", 1.0)):
        world.after(seconds, lambda name=name: seen.append(name))  # type: ignore[misc]
    world.run(1.5)
    assert (seen, world.now) == (["first", "second"], 1.5)
