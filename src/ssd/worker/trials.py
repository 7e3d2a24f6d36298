"""The engine's side of the process that tries grammars.

A grammar is a program that strangers write: what it takes to compile cannot be told from its text. So each is
compiled elsewhere first, within limits (`trial_program.py`), and here only if that went well.
"""

import msgspec

from ssd.worker.forking import ForkingProcess
from ssd.worker.trial_program import Ask, TrialSettings, Verdict

_FAILED = Verdict("its compiler failed on it", is_certain=False)


class Trials:
    """Each link is for one thread at a time."""

    def __init__(self, settings: TrialSettings, num_links: int) -> None:
        what = "the process that tries grammars"
        self._process = ForkingProcess(
            "ssd.worker.trial_program", what, msgspec.json.encode(settings), num_links
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        self._process.end()

    def wait_until_ready(self) -> None:
        """RuntimeError: it cannot be had."""
        self._process.wait_until_ready()

    def ask(self, link: int, ask: Ask) -> Verdict:
        said = self._process.ask(link, msgspec.json.encode(ask))
        return _FAILED if said is None else msgspec.json.decode(said, type=Verdict)
