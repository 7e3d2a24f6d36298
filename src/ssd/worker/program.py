"""The engine process: `python -m ssd.worker.program FOLDER`, started by EngineClient.

Standard input is its lifeline: the first line brings the settings, the end of it ends the process.
Knows how the parts come together; what the engine does is the loop's affair.
"""

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from ssd.config import EngineConfig
from ssd.engine.build import build_engine
from ssd.runtime.cores import cores_beside
from ssd.worker.grammar_desk import GrammarDesk
from ssd.worker.link import Addresses, EventSender, WorkerLink
from ssd.worker.logs import log_as_json
from ssd.worker.loop import EngineLoop, start_heartbeat
from ssd.worker.messages import Failed, Ready, encode

logger = logging.getLogger(__name__)

_GRACE = 3.0
"""Seconds for the step under way, once the lifeline is cut."""


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    engine: EngineConfig
    log_level: str = "info"


def main() -> int:
    addresses = Addresses(Path(sys.argv[1]))
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerSettings)
    log_as_json("engine", settings.log_level)
    end = _End()
    link = WorkerLink(addresses)
    try:
        return _run(settings.engine, addresses, link, end)
    except ValueError as error:
        link.send(encode([Failed(str(error), is_refusal=True)]))
    except Exception as error:
        logger.exception("the engine failed")
        link.send(encode([Failed(repr(error))]))
    finally:
        link.close()
    return 1


def _run(config: EngineConfig, addresses: Addresses, link: WorkerLink, end: "_End") -> int:
    engine = build_engine(config)
    requests = engine.requests
    engine.core.share_fairly()
    loop = EngineLoop(engine, link)
    desk = GrammarDesk(engine.grammars, cores_beside((*engine.config.cores, *engine.config.draft_cores)))
    engine.grammars.load()  # Nothing else moves meanwhile: better before there are streams than among them.
    desk.wait_until_ready()
    desk.open(addresses)
    model, max_model_len = engine.config.model, engine.loaded.max_model_len
    link.send(encode([Ready(model, requests.end_ids, requests.vocab_size, max_model_len)]))
    start_heartbeat(loop, EventSender(addresses))
    try:
        loop.run(end)
    except ValueError as error:
        # Past loading, settings are no longer to blame.
        raise RuntimeError(str(error)) from error
    finally:
        engine.core.close()
    return 0


class _End:
    """Whether it is time to stop: a signal came, or whoever held the other end of standard input is gone."""

    def __init__(self) -> None:
        self._is_due = False
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._note())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=self._watch, name="ssd-lifeline", daemon=True).start()

    def __call__(self) -> bool:
        return self._is_due

    def _note(self) -> None:
        self._is_due = True

    def _watch(self) -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        self._note()
        time.sleep(_GRACE)
        # Loading, or a step without end: nobody is left to wait for it, nor for a message.
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
