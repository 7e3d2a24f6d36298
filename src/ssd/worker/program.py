"""The engine process: `python -m ssd.worker.program FOLDER`, started by EngineClient.

Standard input is its lifeline: the first line brings the settings, the end of it ends the process.
Knows how the parts come together, and how its parent starts it; what the engine does is the loop's affair.
"""

import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from ssd.config import EngineConfig
from ssd.config.server import LOG_FORMAT_VARIABLE, LogFormat
from ssd.engine.build import build_engine
from ssd.processes.child import Child
from ssd.processes.lifeline import end_with_parent
from ssd.processes.logs import start_log
from ssd.processes.signals import Signals
from ssd.runtime.cores import cores_beside
from ssd.worker.grammar_desk import GrammarDesk
from ssd.worker.link import Addresses, EventLink, WorkerLink
from ssd.worker.loop import EngineLoop, start_heartbeat
from ssd.worker.messages import Failed, Ready, encode

logger = logging.getLogger(__name__)

_STEP_GRACE = 3.0
"""Seconds for the step under way, once the lifeline is cut."""
_GRACE = 5.0
"""Seconds for an engine that was asked to end; a stopped process hears nothing and is killed then."""
_NO_BARS = {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""For the engine and the draft it starts: both write to the standard error of their parent."""


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    engine: EngineConfig
    log_level: str = "info"
    log_format: LogFormat = "json"


def engine_child(
    config: EngineConfig, addresses: Addresses, *, log_level: str, log_format: LogFormat
) -> Child:
    """This program, as a server starts it."""
    return Child(
        [sys.executable, "-m", "ssd.worker.program", str(addresses.folder)],
        name="an engine",
        environment={LOG_FORMAT_VARIABLE: log_format, **_NO_BARS},
        first_line=msgspec.json.encode(WorkerSettings(config, log_level, log_format)),
        grace=_GRACE,
    )


def main() -> int:
    addresses = Addresses(Path(sys.argv[1]))
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerSettings)
    start_log("engine", settings.log_level, settings.log_format)
    signals = Signals([signal.SIGTERM])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(addresses.remove, grace=_STEP_GRACE)
    link = WorkerLink(addresses)
    try:
        return _run(settings.engine, addresses, link, signals.have_come)
    except ValueError as error:
        link.send(encode([Failed(str(error), is_refusal=True)]))
    except Exception as error:
        logger.exception("the engine failed")
        link.send(encode([Failed(repr(error))]))
    finally:
        link.close()
    return 1


def _run(config: EngineConfig, addresses: Addresses, link: WorkerLink, is_over: Callable[[], bool]) -> int:
    engine = build_engine(config)
    requests = engine.requests
    engine.core.share_fairly()
    loop = EngineLoop(engine, link)
    draft = engine.config.draft
    taken = (*engine.config.cores, *(draft.cores if draft else ()))
    desk = GrammarDesk(engine.grammars, cores_beside(taken))
    engine.grammars.load()  # Nothing else moves meanwhile: better before there are streams than among them.
    desk.wait_until_ready()
    desk.open(addresses)
    model, max_model_len = engine.config.model, engine.loaded.max_model_len
    link.send(encode([Ready(model, requests.end_ids, requests.vocab_size, max_model_len)]))
    start_heartbeat(loop, EventLink(addresses))
    try:
        loop.run(is_over)
    except ValueError as error:
        # Past loading, settings are no longer to blame.
        raise RuntimeError(str(error)) from error
    finally:
        engine.core.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
