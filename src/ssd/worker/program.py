"""The engine process: `python -m ssd.worker.program FOLDER`, started by AsyncLLM.

Standard input is its lifeline: the first line holds the settings, and its end ends the process.
Knows how a parent starts the process and how its parts are put together. Does not know what the engine does
(loop.py).
"""

import atexit
import gc
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
from ssd.worker.compile_queue import CompileQueue
from ssd.worker.engine_sockets import Addresses, EventSocket, WorkerSocket
from ssd.worker.loop import WorkerLoop, start_heartbeat
from ssd.worker.messages import Failed, Ready, encode

logger = logging.getLogger(__name__)

_STEP_GRACE = 3.0
"""Seconds for the step in flight, once the parent is gone."""
_GRACE = 5.0
"""Seconds for an engine to end when asked; then it is killed, for example if it is stopped."""
_NO_BARS = {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""For the engine and the draft it starts: both write to the standard error of their parent."""


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    engine: EngineConfig
    log_level: str = "info"
    log_format: LogFormat = "json"


def engine_child(
    config: EngineConfig, addresses: Addresses, *, log_level: str, log_format: LogFormat
) -> Child:
    """The child process that runs this program; not started yet."""
    return Child(
        [sys.executable, "-m", "ssd.worker.program", str(addresses.folder)],
        name="an engine",
        environment={LOG_FORMAT_VARIABLE: log_format, **_NO_BARS},
        first_line=msgspec.json.encode(WorkerSettings(config, log_level, log_format)),
        grace=_GRACE,
    )


def main() -> int:
    # At its end Python searches all objects for cycles, which takes a second after torch.
    atexit.register(gc.freeze)
    addresses = Addresses(Path(sys.argv[1]))
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerSettings)
    start_log("engine", settings.log_level, settings.log_format)
    signals = Signals([signal.SIGTERM])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(addresses.remove, grace=_STEP_GRACE)
    socket = WorkerSocket(addresses)
    try:
        return _run(settings.engine, addresses, socket, signals.have_come)
    except ValueError as error:
        socket.send(encode([Failed(str(error), is_refusal=True)]))
    except Exception as error:
        logger.exception("the engine failed")
        socket.send(encode([Failed(repr(error))]))
    finally:
        socket.close()
    return 1


def _run(
    config: EngineConfig, addresses: Addresses, socket: WorkerSocket, is_over: Callable[[], bool]
) -> int:
    engine = build_engine(config)
    requests = engine.requests
    engine.core.share_fairly()
    loop = WorkerLoop(engine, socket)
    draft = engine.config.draft
    taken = (*engine.config.cores, *(draft.cores if draft else ()))
    compile_queue = CompileQueue(engine.grammars, cores_beside(taken))
    engine.grammars.load()  # Blocks all threads for seconds, so do it before there are streams.
    compile_queue.wait_until_ready()
    compile_queue.open(addresses)
    model, max_model_len = engine.config.model, engine.loaded.max_model_len
    socket.send(encode([Ready(model, requests.end_ids, requests.vocab_size, max_model_len)]))
    start_heartbeat(loop, EventSocket(addresses))
    try:
        loop.run(is_over)
    except ValueError as error:
        # Once loaded, a ValueError is a defect, not a wrong setting.
        raise RuntimeError(str(error)) from error
    finally:
        engine.core.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
