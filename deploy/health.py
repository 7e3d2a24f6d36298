"""Whether the server in this container is well: `health.py ROUTE`, with exit code 0 or 1.

Asks on the port that the server was started with: what its command line says, or else SSD_LISTEN_PORT. Needs
nothing but Python; knows no model and no engine.
"""

import os
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

_COMMAND = Path("/proc/1/cmdline")


def port(command: Sequence[str], environment: Mapping[str, str]) -> int:
    said = environment.get("SSD_LISTEN_PORT", "8000")
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word == "--port":
            said = following
        elif word.startswith("--port="):
            said = word.removeprefix("--port=")
    return int(said)


def main() -> None:
    command = _COMMAND.read_text().split("\0") if _COMMAND.exists() else []
    url = f"http://127.0.0.1:{port(command, os.environ)}{sys.argv[1]}"
    try:
        # Whatever proxy the container was given is not for this.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(url, timeout=4).close()
    except OSError as error:  # Nobody listens, or the answer is no 200.
        sys.exit(f"{url}: {error}")


if __name__ == "__main__":
    main()
