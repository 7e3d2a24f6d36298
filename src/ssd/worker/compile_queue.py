"""Threads that compile grammars while the engine runs.

A grammar that is in the cache is answered at once. Any other is a program written by strangers, whose text
does not show what it takes to compile: it is compiled in the sandbox process first, and here only if that
succeeded. It goes through the quick queue and, if it exceeds the quick queue's time limit,
through the slow queue, so only slow grammars wait behind a slow grammar.

Knows the compiler and its messages. Does not know requests: the server adds a request once its grammar is
prepared, and the engine then finds it in the cache.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import msgspec

from ssd.engine.grammar import Grammars, tokenizer_text, unusable
from ssd.engine.grammar_cache import GrammarCache
from ssd.engine.grammar_source import source_of
from ssd.sampling.constraint import Grammar, GrammarError
from ssd.worker.engine_sockets import Addresses, EventSocket, GrammarSocket
from ssd.worker.forking import ForkingProcess
from ssd.worker.messages import Prepare, Prepared, decode_prepares, encode
from ssd.worker.sandbox_program import Ask, SandboxSettings, Verdict

logger = logging.getLogger(__name__)

PREPARE_SECONDS = 30.0
"""How long a caller waits for its grammar. Behind many others even a small grammar may take longer."""
_MOST_BYTES = 128 << 20
"""Memory limit for one grammar; the largest useful ones take 20 MB."""
_MOST_WAITING = 16
"""Queue length. A request beyond it is refused at once instead of timing out."""
_NICENESS = 5
"""Of the sandbox: on a shared core the engine then gets three quarters of the time."""
_FAILED = Verdict("its compiler failed on it", is_certain=False)


class CompileSandbox:
    """The process that compiles untrusted grammars within limits (`sandbox_program.py`).

    Each channel may be used by one thread at a time.
    """

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


@dataclass(frozen=True, slots=True)
class _Queue:
    number: int
    processor_seconds: float
    seconds: float
    """Wall-clock limit."""
    waiting: "SimpleQueue[Prepare]"

    def ask(self, source: str, seconds_left: float) -> Ask:
        seconds = min(self.seconds, seconds_left)
        return Ask(source, self.processor_seconds, seconds, _MOST_BYTES, _NICENESS)


class CompileQueue:
    def __init__(self, grammars: Grammars, cores: Sequence[int] = ()) -> None:
        """`cores`: where the sandbox runs."""
        tokenizer, end_ids, vocab_size = grammars.settings
        self._grammars = grammars
        self._refused: GrammarCache[Grammar, str] = GrammarCache()
        self._quick = _Queue(0, 0.3, 3.0, SimpleQueue())
        self._slow = _Queue(1, 4.0, PREPARE_SECONDS, SimpleQueue())
        self._sandbox = CompileSandbox(
            SandboxSettings(tokenizer_text(tokenizer), tuple(end_ids), vocab_size, tuple(cores)),
            num_channels=2,
        )

    def wait_until_ready(self) -> None:
        self._sandbox.wait_until_ready()

    def open(self, addresses: Addresses) -> None:
        self._start("listen", lambda: self._listen(addresses))
        for queue in (self._quick, self._slow):
            self._start(f"queue-{queue.number}", partial(self._work, queue, addresses))

    def _start(self, name: str, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name=f"ssd-grammars-{name}", daemon=True).start()

    def _listen(self, addresses: Addresses) -> None:
        asking, answering = GrammarSocket(addresses), EventSocket(addresses)
        while True:
            for asked in decode_prepares(asking.receive()):
                answer = self._known(asked) or self._enqueue(asked, self._quick)
                if answer is not None:
                    answering.send(encode([answer]))

    def _work(self, queue: _Queue, addresses: Addresses) -> None:
        answering = EventSocket(addresses)
        while True:
            asked = queue.waiting.get()
            answer = self._known(asked) or self._prepared(asked, queue) or self._enqueue(asked, self._slow)
            if answer is not None:
                answering.send(encode([answer]))

    def _enqueue(self, asked: Prepare, queue: _Queue) -> Prepared | None:
        if queue.waiting.qsize() < _MOST_WAITING:
            queue.waiting.put(asked)
            return None
        return Prepared(asked.ticket, "many grammars are being compiled: try again soon", is_final=False)

    def _known(self, asked: Prepare) -> Prepared | None:
        """The answer if the grammar is in the cache, compiled or refused."""
        if self._grammars.is_prepared(asked.grammar):
            return Prepared(asked.ticket)
        refusal = self._refused.get(asked.grammar)
        return None if refusal is None else Prepared(asked.ticket, refusal)

    def _prepared(self, asked: Prepare, queue: _Queue) -> Prepared | None:
        """Compiles a grammar; None: it exceeds this queue's time limit."""
        grammar, left = asked.grammar, PREPARE_SECONDS - (time.monotonic() - asked.asked_at)
        if left <= 0:
            # Its caller has timed out as well.
            return Prepared(asked.ticket, "it waited too long", is_final=False)
        try:
            verdict = self._sandbox.ask(queue.number, queue.ask(source_of(grammar), left))
            if verdict.is_late and queue is self._quick:
                return None
            if verdict.refusal:
                return self._refuse(
                    asked, str(unusable(grammar, verdict.refusal)), for_good=verdict.is_certain
                )
            self._grammars.prepare(grammar, verdict.num_bytes)
        except GrammarError as error:
            return self._refuse(asked, str(error), for_good=True)
        except BaseException:  # Includes panics of the library: no grammar may end the thread.
            logger.exception("a grammar could not be compiled")
            return Prepared(asked.ticket, "the grammar cannot be used: its compiler failed on it")
        return Prepared(asked.ticket)

    def _refuse(self, asked: Prepare, reason: str, *, for_good: bool) -> Prepared:
        if for_good:
            self._refused.put(asked.grammar, reason, num_bytes=len(asked.grammar.text))
        return Prepared(asked.ticket, reason, is_final=for_good)
