"""Log formats of server, engine and draft process: one JSON object per line, or text for a terminal.

Pass fields as `extra={"fields": {...}}`. Does not know what is logged.
"""

import json
import logging
import sys
import time
from types import TracebackType
from typing import Any

from ssd.config.server import LogFormat
from ssd.processes.terminal import escaped

_SHOWN_LEVEL = logging.WARNING
"""Text lines of this level and above contain the level."""


class JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """`12:00:01 server: ready`, local time; fields after the message, an exception below it.

    Messages may contain text of callers, such as a path. So control characters are escaped and further lines
    indented: callers can neither move the cursor nor imitate a log line.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname.lower()}: " if record.levelno >= _SHOWN_LEVEL else ""
        fields = "".join(f" {name}={value}" for name, value in getattr(record, "fields", {}).items())
        line = f"{clock} {self._process}: {level}{record.getMessage()}{fields}"
        if record.exc_info:
            line += f"\n{self.formatException(record.exc_info)}"
        return escaped(line).replace("\n", "\n    ")


def usual_format() -> LogFormat:
    """Text if standard error is a terminal, else JSON."""
    return "text" if sys.stderr.isatty() else "json"


def start_log(process: str, level: str, form: LogFormat) -> None:
    """Writes all logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if form == "json" else TextFormatter(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    if form == "json":
        sys.excepthook = _log_uncaught


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.critical("the process ends: %s", kind.__name__, exc_info=(kind, error, trace))
