"""A child's end of its lifeline: the standard input that its parent holds the other end of.

Whoever started this process may be killed and tell nobody. The system then closes what it held, so a
thread that reads from it knows. Does not know what the process does.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from ssd.processes.process_group import kill_group

_GRACE = 5.0
"""Seconds to end in one's own way, once the parent is gone: who still loads a model hears no signal."""


def end_with_parent(clean_up: Callable[[], None], *, grace: float = _GRACE) -> None:
    """From here on the end of standard input ends this process and all that it started.

    `clean_up` does first what the parent would have done after our end.
    """
    arguments = (sys.stdin.fileno(), clean_up, grace)
    threading.Thread(target=_wait_for_the_end, args=arguments, name="lifeline", daemon=True).start()


def _wait_for_the_end(lifeline: int, clean_up: Callable[[], None], grace: float) -> None:
    with contextlib.suppress(OSError):
        while os.read(lifeline, 4096):
            pass
    clean_up()
    # A parent starts its children as leaders of a group; what was started by hand shares the shell's.
    is_leader = os.getpgrp() == os.getpid()
    if is_leader:
        os.killpg(0, signal.SIGTERM)
    else:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    if is_leader:
        kill_group(os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)
