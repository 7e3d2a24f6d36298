"""A rank of a draft killed at any moment: the draft ends within seconds, nobody stays, no token changes.

    python -m tests.e2e.rank_faults [--kills 20]

A draft of two ranks works for an engine whose three requests decode. Either rank is killed, also while it
loads; then the next draft is waited for.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ssd import LLM, SamplingParams
from ssd.processes import child
from tests.alive import is_alive
from tests.e2e.process_faults import PROMPTS, Slow, params
from tests.tiny import write_checkpoint

START_PATIENCE = 400.0
PATIENCE = 10.0
"""Seconds within which everything of a draft that lost a rank must be gone."""


@dataclass(frozen=True, slots=True)
class Killed:
    wrong: int
    """Texts that are not those of plain decoding."""
    seconds: float
    """Until nothing of that draft was left."""
    orphans: int
    rank: int


def children_of(pid: int) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            parent = (each / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == pid:
            found.append(int(each.name))
    return found


class Ranked:
    """An engine with a draft of two ranks, and plain decoding beside it."""

    def __init__(self, folder: Path) -> None:
        model = str(write_checkpoint("medium", folder / "target"))
        common: dict[str, Any] = {"device": "cpu", "deterministic": True, "show_progress": False}
        with LLM(model, **common) as plain:
            self._expected = [each.outputs for each in plain.generate(PROMPTS, params(0, 60), use_tqdm=False)]
        draft = {"model": model, "device": "cpu", "tensor_parallel_size": 2, "timeout": 5.0}
        self.llm = LLM(model, mode="ssd", draft=draft, **common)
        decoder: Any = self.llm._engine.core._decoder
        decoder._runner = Slow(decoder._runner, 0.05)
        self.seen: set[int] = set()

    def ranks(self) -> list[int]:
        """The leader, then who follows; empty: none runs at the moment."""
        source: Any = self.llm._engine.core._decoder.proposer.policy.client.line.strands[0].source  # type: ignore[attr-defined]
        if source.pid is None or not is_alive(source.pid):
            return []
        found = [source.pid, *children_of(source.pid)]
        self.seen.update(found)
        return found

    def kill(self, seed: int) -> Killed:
        rng = random.Random(seed)
        delay, place = rng.uniform(0.0, 1.5), rng.randrange(2)
        gone: list[float] = []

        def strike() -> None:
            # Every second one works by then; the others are struck at any moment of their start.
            ranks = self._two_ranks(ready=bool(seed % 2))
            time.sleep(delay)
            struck = time.monotonic()
            os.kill(ranks[place], signal.SIGKILL)
            while any(is_alive(each) for each in ranks) and time.monotonic() - struck < 3 * PATIENCE:
                time.sleep(0.02)
            gone.append(time.monotonic() - struck)

        thread = threading.Thread(target=strike)
        thread.start()
        found = self.llm.generate(PROMPTS, params(0, 60), use_tqdm=False)
        while thread.is_alive():
            # The line is looked after while requests run.
            self.llm.generate(PROMPTS[:1], SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
        if not gone:
            raise AssertionError("nothing was struck: see above")
        wrong = sum(each.outputs != plain for each, plain in zip(found, self._expected, strict=True))
        alive = {each for each in self.seen if is_alive(each)}
        return Killed(wrong, gone[0], len(alive - set(self.ranks())), place)

    def _two_ranks(self, *, ready: bool) -> list[int]:
        """Waits for the draft that took the place of the last one."""
        line: Any = self.llm._engine.core._decoder.proposer.policy.client.line  # type: ignore[attr-defined]
        ends = time.monotonic() + START_PATIENCE
        while time.monotonic() < ends:
            if len(found := self.ranks()) == 2 and (line.is_ready or not ready):
                return found
            time.sleep(0.02)
        raise AssertionError("no draft of two ranks came")

    def close(self) -> int:
        """How many processes are left behind."""
        self.llm.close()
        ends = time.monotonic() + PATIENCE
        while any(is_alive(each) for each in self.seen) and time.monotonic() < ends:
            time.sleep(0.05)
        return sum(is_alive(each) for each in self.seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    kills = parser.parse_args().kills
    # Who dies young is started again later each time: half a minute, twenty times over.
    with tempfile.TemporaryDirectory() as folder, patch.object(child, "_LONGEST_BACKOFF", 0.5):
        ranked = Ranked(Path(folder))
        found = []
        for seed in range(kills):
            found.append(ranked.kill(seed))
            print(f"{seed}: {found[-1]}", flush=True)
        hits = ranked.llm.stats.speculation.hits
        left = ranked.close()
    wrong, orphans = sum(each.wrong for each in found), sum(each.orphans for each in found) + left
    longest = max(each.seconds for each in found)
    print(
        f"{kills} kills: {wrong} texts changed, {orphans} processes left behind, all of a draft gone after "
        f"{longest:.1f} s at most, {hits} hits between them"
    )
    sys.exit(1 if wrong or orphans or longest > PATIENCE else 0)


if __name__ == "__main__":
    main()
