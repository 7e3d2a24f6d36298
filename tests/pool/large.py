"""One large pool: connections, bytes, host time and shares, and what follows when a tenth of its drafts dies.

    python -m tests.pool.large --targets 100 --drafts 10 --sequences 6400 --steps 200 [--record FILE]
    python -m tests.pool.large --routing --targets 1000 --drafts 100 --sequences 64000

The first runs the real client and server of every target and draft, in one process and virtual time, with a
rule in place of the models. The second asks the router's `choose` only: how evenly sequences spread, and how
many move when a tenth of the drafts is gone. Host times are processor times of this machine; all else is
counted, or virtual.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.records import Record
from ssd.draft.client.router import choose
from tests.pool.checks import integrity
from tests.pool.draft import DraftHost, DraftPlan
from tests.pool.links import Network
from tests.pool.target import Target, TargetPlan
from tests.pool.texts import VOCAB, mixed
from tests.pool.world import World

_ROUND, _STEP = 0.2, 0.04
"""Virtual seconds of a verification and of a draft's step."""
_WEIGHTS = {"one": 1.0, "two": 2.0}
_AGAIN = 0.95
"""Of the sequences that lost their draft."""
_PATIENCE = 30.0


class LargePool:
    def __init__(self, num_targets: int, num_drafts: int, num_sequences: int) -> None:
        self.world = World(1)
        self.network = Network(self.world, 0.0005)
        self.num_sequences = num_sequences
        each = num_sequences // num_drafts
        # Room for all after a tenth of the drafts is gone, and as much again as loads may differ.
        plans = [
            DraftPlan(
                f"tcp://draft{place}:1",
                sequences=int(1.5 * each) + 8,
                width=int(1.5 * each) + 8,
                chunk=2048,
                num_blocks=16 * each + 512,
                context=512,
                step_seconds=_STEP,
                row_seconds=1e-6,
                weights=_WEIGHTS,
            )
            for place in range(num_drafts)
        ]
        self.drafts = [DraftHost(self.network, plan, lambda: 0.0) for plan in plans]
        addresses = [plan.address for plan in plans]
        self.targets = [
            Target(
                self.network,
                TargetPlan(
                    f"target{place}",
                    key=[*_WEIGHTS][place % 2],
                    batch=num_sequences // num_targets,
                    round_seconds=_ROUND * (1 + 0.1 * place / num_targets),
                    row_seconds=1e-5,
                    timeout=3.0,
                    surprises=12,
                    prompt=96,
                    long_prompt=96,
                    tokens=300,
                ),
                addresses,
                lambda _name: [],
                instance=f"target{place}",  # Each draws its drafts and requests by itself.
            )
            for place in range(num_targets)
        ]

    @property
    def num_steps(self) -> int:
        """Of the draft that has made most."""
        return max(each.server._work.num_steps for each in self.drafts)

    def run_steps(self, count: int) -> None:
        ends = self.num_steps + count
        while self.num_steps < ends:
            self.world.run(_ROUND)

    def figures(self, num_steps: int) -> dict[str, Any]:
        """Averages over this number of steps, which begin now."""
        processes = [[each.process for each in self.targets], [each.process for each in self.drafts]]
        before = [sum(each.cpu for each in side) for side in processes]
        tokens, num_bytes = sum(each.num_tokens for each in self.targets), self.world.num_bytes
        rounds, hits = (
            sum(getattr(each, name) for each in self.targets) for name in ("num_rounds", "num_hits")
        )
        steps = [each.server._work.num_steps for each in self.drafts]
        rows = sum((each.model.rows for each in self.drafts), Counter[str]())
        open_before = sum(each.scheduler.num_sessions for each in self.drafts)
        self.run_steps(num_steps)
        cpu = [sum(each.cpu for each in side) - first for side, first in zip(processes, before, strict=True)]
        new_rounds = sum(each.num_rounds for each in self.targets) - rounds
        new_tokens = sum(each.num_tokens for each in self.targets) - tokens
        new_steps = [
            each.server._work.num_steps - first for each, first in zip(self.drafts, steps, strict=True)
        ]
        sessions = [each.scheduler.num_sessions for each in self.drafts]
        session_steps = sum(a * b for a, b in zip(new_steps, sessions, strict=True))
        new_rows = sum((each.model.rows for each in self.drafts), Counter[str]()) - rows
        return {
            "connections": len(self.network.lines),
            "sequences_open": [open_before, sum(sessions)],
            "sequences_of_a_draft": [min(sessions), max(sessions)],
            "steps_of_a_draft": max(new_steps),
            "tokens": new_tokens,
            "bytes_per_token": round((self.world.num_bytes - num_bytes) / new_tokens, 1),
            "hits_of_rounds": round((sum(each.num_hits for each in self.targets) - hits) / new_rounds, 3),
            "target_us_per_sequence_and_round": round(1e6 * cpu[0] / new_rounds, 1),
            "draft_us_per_sequence_and_step": round(1e6 * cpu[1] / session_steps, 1),
            "rows": {name: round(count / new_rows.total(), 3) for name, count in sorted(new_rows.items())},
        }

    def kill_a_tenth(self) -> dict[str, Any]:
        """Seconds until the sequences of the dead drafts are open elsewhere, and until they hit again."""
        gone = self.drafts[: max(1, len(self.drafts) // 10)]
        addresses = {each.plan.address for each in gone}
        lost = [
            (target, target.requests[number])  # type: ignore[index]
            for target in self.targets
            for number, session in target.client._sessions.items()
            if session.replica is not None and session.replica.name in addresses
        ]
        died = self.world.now
        for each in gone:
            each.kill()
        moved = again = None
        while self.world.now < died + _PATIENCE and again is None:
            self.world.run(0.05)
            present = [request for target, request in lost if request in target.requests.values()]
            if moved is None and not any(self._holds(target, addresses) for target in self.targets):
                moved = self.world.now - died
            if sum(each.hit_at > died for each in present) >= _AGAIN * len(present):
                again = self.world.now - died
        return {
            "drafts_killed": len(gone),
            "sequences_lost": len(lost),
            "moved_after": moved and round(moved, 2),
            "95_percent_hit_again_after": again and round(again, 2),
        }

    @staticmethod
    def _holds(target: Target, addresses: set[str]) -> bool:
        sessions = target.client._sessions.values()
        return any(each.replica is not None and each.replica.name in addresses for each in sessions)


def large_run(num_targets: int, num_drafts: int, num_sequences: int, *, num_steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    started = time.process_time()
    pool = LargePool(num_targets, num_drafts, num_sequences)
    pool.world.run(2.0)
    found = pool.figures(num_steps)
    found |= pool.kill_a_tenth()
    for host in pool.drafts:
        if host.is_alive:
            integrity(host)
    for target in pool.targets:
        integrity(target)
    return found | {"cpu_seconds": round(time.process_time() - started, 1)}


@dataclass(slots=True)
class Load:
    """A draft, for the router."""

    name: str
    num_sequences: int = 0


def routing_run(num_targets: int, num_drafts: int, num_sequences: int) -> dict[str, Any]:
    """Every sequence of every target is given to a draft; then a tenth of the drafts dies."""
    drafts = [Load(f"tcp://10.0.{place // 250}.{place % 250}:7000") for place in range(num_drafts)]
    # A third of all texts share one of ten prefixes.
    texts = [_prefix(number % 10 if number % 3 == 0 else number) for number in range(num_sequences)]
    started = time.process_time()
    homes = [_given(drafts, text) for text in texts]
    seconds = time.process_time() - started
    loads = [each.num_sequences for each in drafts]
    gone = {each.name for each in drafts[: max(1, num_drafts // 10)]}
    left = [each for each in drafts if each.name not in gone]
    lost = [number for number, home in enumerate(homes) if home.name in gone]
    started = time.process_time()
    for number in lost:
        _given(left, texts[number])
    again = time.process_time() - started
    after = [each.num_sequences for each in left]
    return {
        "us_per_choice": round(1e6 * seconds / num_sequences, 1),
        "load_over_mean": round(max(loads) * num_drafts / num_sequences, 3),
        "sequences_moved": len(lost),
        "ms_of_a_target_to_choose_again": round(1e3 * again / num_targets, 2),
        "load_over_mean_after": round(max(after) * len(left) / num_sequences, 3),
    }


def _prefix(number: int) -> list[int]:
    chance = np.random.default_rng(mixed(7, number))
    return [int(token) for token in chance.integers(2, VOCAB, 64)]


def _given(drafts: Sequence[Load], text: Sequence[int]) -> Load:
    found = choose(drafts, text)
    assert found is not None
    found.num_sequences += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--routing", action="store_true")
    parser.add_argument("--targets", type=int, default=100)
    parser.add_argument("--drafts", type=int, default=10)
    parser.add_argument("--sequences", type=int, default=6400)
    parser.add_argument("--steps", type=int, default=200, help="of each draft, that are measured")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    size = {"targets": options.targets, "drafts": options.drafts, "sequences": options.sequences}
    if options.routing:
        case, found = "routing alone", routing_run(*size.values())
    else:
        case, found = "full code", large_run(*size.values(), num_steps=options.steps)
    sys.stdout.write(json.dumps({"case": case, **size, **found}, indent=1) + "\n")
    if options.record:
        Record(options.record, size | ({} if options.routing else {"steps": options.steps})).add(case, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
