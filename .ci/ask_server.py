"""Asks a server that was just started for its page and one completion: `ask_server.py PORT`.

Needs nothing but Python, so that it runs in any venv.
"""

import json
import sys
import time
import urllib.error
import urllib.request

_PATIENCE = 180.0


def fetch(url: str, body: dict[str, object] | None = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fetch(f"{url}/ready")
            return
        except OSError:  # Nobody listens yet, or it still loads.
            if time.monotonic() > deadline:
                sys.exit(f"the server was not ready within {_PATIENCE:.0f} s")
            time.sleep(0.2)


def main() -> None:
    url = f"http://127.0.0.1:{int(sys.argv[1])}"
    wait_until_ready(url)
    if "<title>SSD</title>" not in fetch(url):
        sys.exit("the page at / is not the chat")
    answer = json.loads(fetch(f"{url}/v1/completions", {"prompt": "The quick", "max_tokens": 4}))
    if not 1 <= answer["usage"]["completion_tokens"] <= 4:
        sys.exit(f"no completion: {answer}")
    sys.stdout.write("the server answers\n")


if __name__ == "__main__":
    main()
