"""Makes the pictures of docs/pictures that show the program: the terminal, animated, and the web chat.

    python -m benchmarks.screenshots --model MODEL --draft SMALL_MODEL   # needs Chromium and playwright
    python -m benchmarks.screenshots --model MODEL --draft SMALL_MODEL --terminal-only

The terminal's picture is a recording of `ssd generate --explain`: the program runs in a pseudo-terminal, and
what it writes is drawn with the times at which it wrote it (`recorded_svg.py`). The web chat is a real
server: its first view in light and dark, and an answer to an example that is clicked. Everything is real
output; nothing is drawn by hand.
"""

import contextlib
import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.flags import parser
from benchmarks.recorded_svg import Chunk, draw

FLAGS = {"model": str, "draft": str, "max-tokens": 90, "terminal-only": False, "web-only": False}
PICTURES = Path(__file__).parents[1] / "docs/pictures"
PROMPT = "def is_prime(n):"
COLUMNS, LINES = 84, 400
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_CHROMIUM_FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
_READY_SECONDS = 300


def recorded(command: list[str]) -> list[Chunk]:
    """What a command writes to a terminal, with the seconds since its start."""
    ours, theirs = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color"}
    started = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, env=os.environ | size)
    os.close(theirs)
    chunks = []
    with contextlib.suppress(OSError):  # The other end is closed.
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.1)[0]:
                said = os.read(ours, 65536).decode(errors="replace")
                chunks.append(Chunk(time.monotonic() - started, said))
    os.close(ours)
    if process.wait() != 0:
        raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
    return chunks


def draw_terminal(model: str, draft: str, max_tokens: int) -> None:
    words = [model, "--draft", draft, "-p", PROMPT, "--max-tokens", str(max_tokens), "--explain"]
    chunks = recorded([sys.executable, "-m", "ssd", "generate", *words])
    shown = f'$ ssd generate {_name(model)} --draft {_name(draft)} -p "{PROMPT}" --explain'
    path = PICTURES / "terminal.svg"
    path.write_text(draw(chunks, columns=COLUMNS, prompt=shown))
    print(f"{path}: {path.stat().st_size} bytes, {len(chunks)} chunks in {chunks[-1].seconds:.1f} s")


def _name(model: str) -> str:
    """A model as a reader would name it: without the folder it happens to be in."""
    return Path(model).name if Path(model).exists() else model


@contextlib.contextmanager
def served(model: str, draft: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ssd", "serve", model, "--draft", draft, "--port", str(port)]
    process = subprocess.Popen([*command, "--engine", "ssd"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _READY_SECONDS
        while not _is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the server did not get ready: run `ssd serve` to see why")
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _is_ready(port: int) -> bool:
    with contextlib.suppress(OSError):
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2).status == 200)
    return False


def draw_web_chat(model: str, draft: str, max_tokens: int) -> None:
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    with served(model, draft) as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=_CHROMIUM_FLAGS)
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 960, "height": 720}, color_scheme=scheme)
            page.goto(url)
            page.wait_for_function("document.querySelector('#how').textContent")
            page.screenshot(path=PICTURES / f"web-first-{scheme}.png")
            if scheme == "light":
                _ask(page, max_tokens)
                page.screenshot(path=PICTURES / "web-chat-light.png")
            page.close()
        browser.close()


def _ask(page: Any, max_tokens: int) -> None:
    page.click("summary")
    page.fill("#max-tokens", str(max_tokens))
    page.click("summary")
    page.locator("#examples button").first.click()
    page.wait_for_selector("#send:not([disabled])", timeout=1000 * _READY_SECONDS)


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    if not options.web_only:
        draw_terminal(options.model, options.draft, options.max_tokens)
    if not options.terminal_only:
        draw_web_chat(options.model, options.draft, options.max_tokens)


if __name__ == "__main__":
    main()
