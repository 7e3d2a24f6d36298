"""Signals that are noted: none is lost, whenever it comes, and what was before comes back."""

import os
import signal
import time
from contextlib import closing

from ssd.processes.signals import Signals


def test_a_signal_is_noted_and_wakes_who_waits() -> None:
    with closing(Signals([signal.SIGUSR1])) as signals:
        assert not signals.have_come()
        assert signals.wait(0.01) == []
        signal.signal(signal.SIGALRM, lambda _number, _frame: os.kill(os.getpid(), signal.SIGUSR1))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        started = time.monotonic()
        assert signals.wait(60) == [signal.SIGUSR1]
        assert time.monotonic() - started < 30
        assert signals.have_come()


def test_each_of_many_counts() -> None:
    with closing(Signals([signal.SIGUSR1, signal.SIGUSR2])) as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert signals.have_come()
        assert len(signals.wait(10)) == 1
        assert set(signals.wait(10)) == {signal.SIGUSR1, signal.SIGUSR2}


def test_handlers_of_before_come_back() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with closing(Signals([signal.SIGUSR1])):
        assert signal.getsignal(signal.SIGUSR1) != before
    assert signal.getsignal(signal.SIGUSR1) == before
