"""The engine's side of the process that compiles untrusted grammars within limits.

A grammar is a program written by strangers: its text does not show what it takes to compile. So each grammar
is compiled in the sandbox (`sandbox_program.py`) first, and in the engine's process only if that succeeded.
"""

import msgspec

from ssd.worker.forking import ForkingProcess
from ssd.worker.sandbox_program import Ask, SandboxSettings, Verdict

_FAILED = Verdict("its compiler failed on it", is_certain=False)


class CompileSandbox:
    """Each channel may be used by one thread at a time."""

    def __init__(self, settings: SandboxSettings, num_channels: int) -> None:
        what = "the grammar sandbox"
        self._process = ForkingProcess(
            "ssd.worker.sandbox_program", what, msgspec.json.encode(settings), num_channels
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        self._process.end()

    def wait_until_ready(self) -> None:
        """RuntimeError: the process does not start."""
        self._process.wait_until_ready()

    def ask(self, channel: int, ask: Ask) -> Verdict:
        said = self._process.ask(channel, msgspec.json.encode(ask))
        return _FAILED if said is None else msgspec.json.decode(said, type=Verdict)
