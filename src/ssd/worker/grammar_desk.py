"""A thread that compiles grammars while the engine goes on, one after the other.

Knows the compiler and the messages about it. Does not know requests: those that need a grammar are added
once it is prepared, and the engine finds it compiled.
"""

import logging
import threading
import time

from ssd.engine.grammar import Grammars
from ssd.sampling.constraint import GrammarError
from ssd.worker.link import Addresses, EventSender, GrammarLine
from ssd.worker.messages import Prepare, Prepared, decode_prepares, encode

logger = logging.getLogger(__name__)

PREPARE_SECONDS = 10.0
"""How long a caller waits for its grammar; behind many others even a small one may take longer."""


def start_grammar_desk(grammars: Grammars, addresses: Addresses) -> None:
    def serve() -> None:
        line, sender = GrammarLine(addresses), EventSender(addresses)
        while True:
            for asked in decode_prepares(line.receive()):
                sender.send(encode([_answer(asked, grammars)]))

    threading.Thread(target=serve, name="ssd-grammars", daemon=True).start()


def _answer(asked: Prepare, grammars: Grammars) -> Prepared:
    if time.monotonic() - asked.asked_at > PREPARE_SECONDS:
        return Prepared(asked.ticket, "it waited too long")  # As its caller has found out by itself.
    try:
        grammars.prepare(asked.grammar)
    except GrammarError as error:
        return Prepared(asked.ticket, str(error))
    except BaseException:  # A panic of the library is one, and no grammar may end the thread.
        logger.exception("a grammar could not be compiled")
        return Prepared(asked.ticket, "the grammar cannot be used: its compiler failed on it")
    return Prepared(asked.ticket)
