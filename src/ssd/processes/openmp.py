"""How threads of OpenMP wait for each other: briefly spinning, then asleep.

By default they spin for milliseconds at every barrier. On a machine with other work each spinning thread
keeps a core from the thread that it waits for, and decoding collapses. GNU's OpenMP, which torch brings on
Linux, reads the setting when torch is loaded; other libraries ignore it.
"""

import sys
from collections.abc import MutableMapping

_SPINS = "GOMP_SPINCOUNT"
_BRIEFLY = "100"
_SET_BY_USERS = (_SPINS, "OMP_WAIT_POLICY")
_ours: set[str] = set()
"""What this process has set, and its user has not."""


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Sets the default for this process and its children.

    A user's setting wins; in a vLLM process nothing is set.
    """
    if "vllm" not in sys.modules and not any(name in environment for name in _SET_BY_USERS):
        environment[_SPINS] = _BRIEFLY
        _ours.add(_SPINS)


def leave_to_vllm(environment: MutableMapping[str, str]) -> None:
    """Takes our default back before vLLM is started, so that its threads wait as they do without us."""
    for name in _ours:
        environment.pop(name, None)
