"""After an error drafting pauses, ever longer, and begins anew; nobody who asked for it sees the error."""

import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from ssd.integrations.vllm.drafting import Drafting
from ssd.integrations.vllm.meter import Meter
from ssd.integrations.vllm.sessions import Sessions


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class MadeUp:
    """Sessions that fail whenever they are told to, when they are closed too if `closes` is false."""

    def __init__(self, *, closes: bool = True) -> None:
        self.is_closed, self.is_attached, self._closes = False, True, closes

    def propose(self) -> str:
        return "proposed"

    def report(self) -> dict[str, float]:
        return {"rounds": 7}

    def close(self) -> None:
        self.is_closed = True
        if not self._closes:
            raise OSError("nor does this work")


class Bench:
    def __init__(self, make: Callable[[], Any] = MadeUp) -> None:
        self.clock, self.meter, self.made, self._make = Clock(), Meter(exported=False), list[Any](), make
        self.drafting = Drafting(self._open, self.meter, clock=self.clock)
        self.drafting.resume()

    def _open(self) -> Sessions:
        self.made.append(self._make())
        return cast(Sessions, self.made[-1])

    def fail(self) -> None:
        def work(_: Sessions) -> None:
            raise RuntimeError("made up")

        assert self.drafting.do(work) is None

    def pause(self) -> float:
        """How long it lasts, in steps of a tenth of a second."""
        began = self.clock.now
        while self.drafting.sessions is None:
            self.clock.now += 0.1
            self.drafting.resume()
        return self.clock.now - began

    @property
    def said(self) -> Any:
        return self.drafting.do(lambda sessions: sessions.propose())


@pytest.mark.parametrize("closes", [True, False])
def test_an_error_is_told_once_pauses_drafting_and_closes_its_sessions(
    closes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(lambda: MadeUp(closes=closes))
    bench.meter.show(draft_up=1.0, spec_sessions=3.0)
    assert bench.said == "proposed"
    with caplog.at_level(logging.ERROR):
        bench.fail()
        bench.fail()
    assert bench.made[0].is_closed
    assert bench.said is None
    assert bench.meter.counts["drafting_errors", ""] == 1
    gauges = bench.meter.gauges
    assert (gauges["drafting_paused"], gauges["draft_up"], gauges["spec_sessions"]) == (1, 0, 0)
    [told] = [each for each in caplog.records if "drafting pauses for 1 s" in each.message]
    assert told.exc_info is not None


def test_drafting_begins_anew_after_ever_longer_pauses() -> None:
    bench, pauses = Bench(), list[int]()
    for _ in range(8):
        bench.fail()
        pauses.append(round(bench.pause()))
        assert bench.said == "proposed"
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert len(bench.made) == len(set(map(id, bench.made))) == 9
    assert bench.meter.counts["drafting_errors", ""] == 8
    assert bench.meter.gauges["drafting_paused"] == 0


def test_after_a_minute_without_an_error_a_pause_is_short_again() -> None:
    bench = Bench()
    for _ in range(3):
        bench.fail()
        bench.pause()
    bench.clock.now += 59
    bench.fail()
    assert round(bench.pause()) == 8
    bench.clock.now += 61
    bench.fail()
    assert round(bench.pause()) == 1


def test_sessions_that_cannot_be_opened_are_tried_again() -> None:
    tries = iter([OSError("no tokenizer"), OSError("still none"), None])

    def make() -> MadeUp:
        if (error := next(tries)) is not None:
            raise error
        return MadeUp()

    bench = Bench(make)
    assert bench.said is None
    assert bench.meter.gauges["drafting_paused"] == 1
    assert round(bench.pause()) == 3, "a second, and two"
    assert bench.said == "proposed"
    assert bench.meter.counts["drafting_errors", ""] == 2


@pytest.mark.parametrize("end", [Bench.fail, lambda bench: bench.drafting.close()])
def test_who_comes_while_sessions_are_closed_does_not_wait(end: Callable[[Bench], None]) -> None:
    """Closing waits for a thread; the worker's other thread has a step to launch."""
    others = list[dict[str, float]]()

    class SlowToClose(MadeUp):
        def close(self) -> None:
            other = threading.Thread(target=lambda: others.append(bench.drafting.report()))
            other.start()
            other.join(10.0)
            assert others

    bench = Bench(SlowToClose)
    end(bench)
    assert others


def test_who_detached_it_stays_detached() -> None:
    """And who asks for a report during a pause gets one."""
    bench = Bench()
    assert bench.drafting.report() == {"rounds": 7}
    bench.fail()
    assert bench.drafting.report()["drafting_paused"] == 1
    bench.drafting.detach()
    bench.pause()
    assert not bench.made[-1].is_attached


def test_what_was_closed_stays_closed() -> None:
    bench = Bench()
    bench.drafting.close()
    assert bench.made[0].is_closed
    bench.clock.now += 1e6
    bench.drafting.resume()
    assert len(bench.made) == 1


def test_one_that_asks_for_its_end_is_heard() -> None:
    """A signal's exception is not drafting's error."""

    def interrupted(_: Sessions) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Bench().drafting.do(interrupted)
