"""Threads that get grammars compiled while the engine goes on.

What is compiled is answered at once, whatever else is being compiled. The rest is tried in another process
first, and compiled here if that went well: in the quick lane, or, once it has used up the little time there,
in the slow one. So nobody waits behind a grammar that takes long but others like it.

Knows the compiler and the messages about it. Does not know requests: those that need a grammar are added
once it is prepared, and the engine finds it compiled.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from ssd.engine.grammar import Grammars, tokenizer_text, unusable
from ssd.engine.grammar_shelf import Shelf
from ssd.engine.grammar_source import source_of
from ssd.sampling.constraint import Grammar, GrammarError
from ssd.worker.link import Addresses, EventLink, GrammarLink
from ssd.worker.messages import Prepare, Prepared, decode_prepares, encode
from ssd.worker.trial_program import Ask, TrialSettings
from ssd.worker.trials import Trials

logger = logging.getLogger(__name__)

PREPARE_SECONDS = 30.0
"""How long a caller waits for its grammar; behind many others even a small one may take longer."""
_MOST_BYTES = 128 << 20
"""Of memory for one grammar; the largest that are of use take 20 MB."""
_MOST_WAITING = 16
"""In a lane. One more is told to come again, rather than after its time is up."""
_NICENESS = 5
"""What is tried gives way to the engine, which then has three quarters of a core that both want."""


@dataclass(frozen=True, slots=True)
class _Lane:
    number: int
    processor_seconds: float
    seconds: float
    """By the clock."""
    waiting: "SimpleQueue[Prepare]"

    def ask(self, source: str, seconds_left: float) -> Ask:
        seconds = min(self.seconds, seconds_left)
        return Ask(source, self.processor_seconds, seconds, _MOST_BYTES, _NICENESS)


class GrammarDesk:
    def __init__(self, grammars: Grammars, cores: Sequence[int] = ()) -> None:
        """`cores`: where grammars are tried."""
        tokenizer, end_ids, vocab_size = grammars.settings
        self._grammars = grammars
        self._refused: Shelf[Grammar, str] = Shelf()
        self._quick = _Lane(0, 0.3, 3.0, SimpleQueue())
        self._slow = _Lane(1, 4.0, PREPARE_SECONDS, SimpleQueue())
        self._trials = Trials(
            TrialSettings(tokenizer_text(tokenizer), tuple(end_ids), vocab_size, tuple(cores)), num_links=2
        )

    def wait_until_ready(self) -> None:
        self._trials.wait_until_ready()

    def open(self, addresses: Addresses) -> None:
        self._start("desk", lambda: self._listen(addresses))
        for lane in (self._quick, self._slow):
            self._start(f"lane-{lane.number}", partial(self._work, lane, addresses))

    def _start(self, name: str, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name=f"ssd-grammars-{name}", daemon=True).start()

    def _listen(self, addresses: Addresses) -> None:
        asking, answering = GrammarLink(addresses), EventLink(addresses)
        while True:
            for asked in decode_prepares(asking.receive()):
                answer = self._known(asked) or self._queue(asked, self._quick)
                if answer is not None:
                    answering.send(encode([answer]))

    def _work(self, lane: _Lane, addresses: Addresses) -> None:
        answering = EventLink(addresses)
        while True:
            asked = lane.waiting.get()
            answer = self._known(asked) or self._prepared(asked, lane) or self._queue(asked, self._slow)
            if answer is not None:
                answering.send(encode([answer]))

    def _queue(self, asked: Prepare, lane: _Lane) -> Prepared | None:
        if lane.waiting.qsize() < _MOST_WAITING:
            lane.waiting.put(asked)
            return None
        return Prepared(asked.ticket, "many grammars are being compiled: try again soon", is_final=False)

    def _known(self, asked: Prepare) -> Prepared | None:
        """The answer, where it takes no work; perhaps somebody else has asked for the same before."""
        if self._grammars.is_prepared(asked.grammar):
            return Prepared(asked.ticket)
        refusal = self._refused.get(asked.grammar)
        return None if refusal is None else Prepared(asked.ticket, refusal)

    def _prepared(self, asked: Prepare, lane: _Lane) -> Prepared | None:
        """None: it takes longer than this lane has."""
        grammar, left = asked.grammar, PREPARE_SECONDS - (time.monotonic() - asked.asked_at)
        if left <= 0:
            # As its caller has found out by itself.
            return Prepared(asked.ticket, "it waited too long", is_final=False)
        try:
            verdict = self._trials.ask(lane.number, lane.ask(source_of(grammar), left))
            if verdict.is_late and lane is self._quick:
                return None
            if verdict.refusal:
                return self._refuse(
                    asked, str(unusable(grammar, verdict.refusal)), for_good=verdict.is_certain
                )
            self._grammars.prepare(grammar, verdict.num_bytes)
        except GrammarError as error:
            return self._refuse(asked, str(error), for_good=True)
        except BaseException:  # A panic of the library is one, and no grammar may end the thread.
            logger.exception("a grammar could not be compiled")
            return Prepared(asked.ticket, "the grammar cannot be used: its compiler failed on it")
        return Prepared(asked.ticket)

    def _refuse(self, asked: Prepare, reason: str, *, for_good: bool) -> Prepared:
        if for_good:
            self._refused.put(asked.grammar, reason, num_bytes=len(asked.grammar.text))
        return Prepared(asked.ticket, reason, is_final=for_good)
