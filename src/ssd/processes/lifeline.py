"""Ends a child process when its parent ends. The lifeline is the child's standard input.

If the parent is killed, the system closes its end of the pipe, and a thread of the child reads the end of
file. Does not know what the process does.
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
"""Seconds to end after SIGTERM once the parent is gone: a process that loads a model handles no signals."""


def end_with_parent(clean_up: Callable[[], None], *, grace: float = _GRACE) -> None:
    """From now on, the end of standard input ends this process and all processes that it started.

    `clean_up` is called first; it does what the parent would have done after this process ended.
    """
    arguments = (sys.stdin.fileno(), clean_up, grace)
    threading.Thread(target=_wait_for_the_end, args=arguments, name="lifeline", daemon=True).start()


def _wait_for_the_end(lifeline: int, clean_up: Callable[[], None], grace: float) -> None:
    with contextlib.suppress(OSError):
        while os.read(lifeline, 4096):
            pass
    clean_up()
    # A parent starts its children as group leaders; a process started by hand shares the shell's group.
    is_leader = os.getpgrp() == os.getpid()
    if is_leader:
        os.killpg(0, signal.SIGTERM)
    else:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    if is_leader:
        kill_group(os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)
