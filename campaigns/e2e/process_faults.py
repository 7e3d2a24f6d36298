"""Faults of a real draft process on a real socket: same tokens, and speculation comes back.

    python -m campaigns.e2e.process_faults --trials 50

Each trial strikes a running draft once while three requests decode, compares their tokens with
plain decoding, and waits for the first hit after the strike.
"""

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from torch import Tensor

from campaigns.e2e.faulty_link import FaultyLink, Mangler, Plan, WireFault
from ssd import LLM, SamplingParams
from ssd.attention.batch import Batch
from ssd.attention.inputs import SequenceInput
from ssd.draft.client import connection
from ssd.draft.protocol.sockets import Keys, ZmqEngineSocket
from ssd.runtime.runner import InFlightStep, Runner
from tests.tiny import write_checkpoint

T = TypeVar("T")

SIGNALS = ("SIGKILL", "SIGSTOP", "pause", "SIGTERM")
WIRE: tuple[WireFault, ...] = ("drop", "delay", "reorder", "corrupt", "lie", "replay")
PROMPTS = ["The quick brown fox jumps over", "def add(a, b):\n    return a + b\n", "Once upon a time"]
PATIENCE = 60.0


def params(seed: int, max_tokens: int) -> list[SamplingParams]:
    common: dict[str, Any] = {"max_tokens": max_tokens, "ignore_eos": True}
    return [SamplingParams(temperature=each, seed=seed, **common) for each in (0.0, 0.7, 1.0)]


@dataclass(frozen=True, slots=True)
class Result:
    wrong: int
    leaks: int
    recovery: float
    """Seconds from the strike to the first hit after it."""


class Slow:
    """A target that takes its time, as large ones do: otherwise it is done before a draft can say a word."""

    is_async = False
    num_uncaptured = 0

    def __init__(self, runner: Runner, seconds: float = 0.02) -> None:
        self._runner, self._seconds = runner, seconds

    def batch(self, rows: Sequence[SequenceInput]) -> Batch:
        return self._runner.batch(rows)

    def launch(self, batch: Batch, finish: Callable[[Tensor], T]) -> InFlightStep[T]:
        time.sleep(self._seconds)
        return self._runner.launch(batch, finish)


class Struck:
    """An engine with its draft process, and plain decoding beside it."""

    def __init__(self, folder: Path) -> None:
        self.model = str(write_checkpoint("medium", folder / "target"))
        common: dict[str, Any] = {"device": "cpu", "deterministic": True, "show_progress": False}
        self.plain = LLM(self.model, **common)
        self.llm = LLM(self.model, mode="ssd", draft={"model": self.model, "timeout": 3.0}, **common)
        decoder: Any = self.llm._engine.core._decoder
        decoder._runner = Slow(decoder._runner)
        self._expected: dict[int, list[Any]] = {}

    @property
    def pid(self) -> int:
        pid = self.llm._engine.core._decoder.proposer.speculator.client.pool.replicas[0].source.pid  # type: ignore[attr-defined]
        assert isinstance(pid, int)
        return pid

    def run(self, fault: str, seed: int) -> Result:
        expected = self._plain(seed % 4)
        delay = random.Random(seed).uniform(0.0, 0.4)
        with striking(self, fault, seed, delay) as struck_at:
            found = self.llm.generate(PROMPTS, params(seed % 4, 60), use_tqdm=False)
        wrong = sum(each.outputs != plain for each, plain in zip(found, expected, strict=True))
        core = self.llm._engine.core
        core.check_integrity()
        return Result(wrong, int(core._blocks.usage > 0), self._recovery(struck_at))

    def close(self) -> None:
        self.llm.close()

    def _plain(self, seed: int) -> list[Any]:
        if seed not in self._expected:
            found = self.plain.generate(PROMPTS, params(seed, 60), use_tqdm=False)
            self._expected[seed] = [each.outputs for each in found]
        return self._expected[seed]

    def _recovery(self, struck_at: list[float]) -> float:
        while time.monotonic() - struck_at[0] < PATIENCE:
            hits_before = self.llm.stats.speculation.hits
            self.llm.generate(PROMPTS[:1], SamplingParams(temperature=0, max_tokens=48), use_tqdm=False)
            if self.llm.stats.speculation.hits > hits_before:
                return time.monotonic() - struck_at[0]
        raise AssertionError("speculation did not come back")


@contextmanager
def striking(struck: Struck, fault: str, seed: int, delay: float) -> Iterator[list[float]]:
    """Strikes once, `delay` seconds into the block; the time of the strike is in the list by its end."""
    when: list[float] = []

    def strike() -> None:
        time.sleep(delay)
        when.append(time.monotonic())
        if fault in SIGNALS:
            _signal(struck.pid, fault)
        else:
            _spoil(struck, Plan(fault, "nodes", 0.5, seed))  # type: ignore[arg-type]

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield when
    finally:
        thread.join()
        _mend(struck)


def _signal(pid: int, name: str) -> None:
    os.kill(pid, signal.SIGSTOP if name == "pause" else getattr(signal, name))
    if name == "pause":
        time.sleep(0.5)
        os.kill(pid, signal.SIGCONT)


def _pool(struck: Struck) -> Any:
    return struck.llm._engine.core._decoder.proposer.speculator.client.pool.replicas[0].connection  # type: ignore[attr-defined]


def _spoil(struck: Struck, plan: Plan) -> None:
    line = _pool(struck)
    if line is not None and isinstance(line._link, FaultyLink):
        line._link._in, line._link._out = Mangler(plan), Mangler(plan)


def _mend(struck: Struck) -> None:
    _spoil(struck, Plan("drop", "nothing", 0.0, 0))


class _SpoilableLink(FaultyLink):
    def __init__(self, address: str, keys: Keys | None = None) -> None:
        super().__init__(ZmqEngineSocket(address, keys), Plan("drop", "nothing", 0.0, 0))


@contextmanager
def spoilable_links() -> Iterator[None]:
    """Lines made within can be spoilt while they run."""
    with patch.object(connection, "ZmqEngineSocket", _SpoilableLink):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=50)
    count = parser.parse_args().trials
    faults = [*SIGNALS, *WIRE]
    results = defaultdict[str, list[Result]](list)
    with tempfile.TemporaryDirectory() as folder, spoilable_links():
        struck = Struck(Path(folder))
        for seed in range(count):
            fault = faults[seed % len(faults)]
            results[fault].append(struck.run(fault, seed))
        struck.close()
    print(f"{'fault':12}{'trials':>8}{'wrong':>8}{'leaks':>8}{'recovery, median s':>20}")
    for fault, found in results.items():
        wrong, leaks = sum(each.wrong for each in found), sum(each.leaks for each in found)
        recovery = statistics.median(each.recovery for each in found)
        print(f"{fault:12}{len(found):8}{wrong:8}{leaks:8}{recovery:20.2f}")
    everything = [each for found in results.values() for each in found]
    num_bad = sum(bool(each.wrong or each.leaks) for each in everything)
    overall = statistics.median(each.recovery for each in everything)
    print(f"{len(everything)} trials, {num_bad} of them bad; median recovery {overall:.2f} s")
    sys.exit(1 if num_bad else 0)


if __name__ == "__main__":
    main()
