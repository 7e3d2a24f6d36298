"""Clients that stream from one server without a pause, and what they got.

Knows the official openai client, and the texts that were given before. Each client asks the same request
again and again, so every text has one that it must be equal to. Times between pieces are kept: a stall of
the server shows there.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.server.process import ServerProcess
from tests.vllm.served import ask

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Numbers: 1 2 3 4 5 6 7",
    "Once upon a time there was a",
    "Write a haiku about the sea.",
    "import os\nimport sys\n\ndef main():\n",
    "The three laws of motion are",
    "Q: What is the boiling point of water?\nA:",
)


@dataclass(slots=True)
class Seen:
    """By all clients together; each only appends."""

    texts: list[tuple[int, str]] = field(default_factory=list)
    """Whole ones, with who asked."""
    lost: list[str] = field(default_factory=list)
    """Requests that ended in an error, by its words."""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """From a request, or a piece of its text, to the next piece."""

    def longest_gap(self, since: float = 0.0, until: float = float("inf")) -> float:
        """Seconds, of those that were under way in this time."""
        return max((end - start for start, end in self.gaps if start < until and end > since), default=0.0)


class Streams:
    def __init__(
        self,
        server: ServerProcess,
        *,
        num_tokens: int,
        rounds: int | None = None,
        clients: int = len(PROMPTS),
    ) -> None:
        """`rounds`: how often each client asks; None: until told to stop."""
        self.seen = Seen()
        self._server, self._num_tokens = server, num_tokens
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask_on, args=(number, rounds)) for number in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> Seen:
        """Once the requests that are under way have ended."""
        self._is_over.set()
        return self.join()

    def join(self) -> Seen:
        for thread in self._threads:
            thread.join()
        return self.seen

    def _ask_on(self, number: int, rounds: int | None) -> None:
        num_asked = 0
        while not self._is_over.is_set() and num_asked != rounds:
            num_asked += 1
            try:
                self.seen.texts.append((number, self._text(number)))
            except Exception as error:
                self.seen.lost.append(f"stream {number}: {type(error).__name__}: {error}")
                return

    def _text(self, number: int) -> str:
        """Half of them greedy, half drawn with a seed."""
        pieces, last = list[str](), time.monotonic()
        stream = ask(
            self._server,
            prompt=PROMPTS[number],
            max_tokens=self._num_tokens,
            temperature=0.8 * (number % 2),
            seed=number,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        finish = None
        for chunk in stream:
            now = time.monotonic()
            self.seen.gaps.append((last, now))
            last = now
            pieces += [choice.text for choice in chunk.choices]
            finish = chunk.choices[0].finish_reason if chunk.choices else finish
        if finish != "length":
            raise ValueError(f"its stream ended as {finish} after {len(pieces)} pieces")
        return "".join(pieces)


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What a server gives while nothing happens to it."""

    texts: Sequence[str]
    longest_gap: float

    @classmethod
    def of(cls, server: ServerProcess, *, num_tokens: int, clients: int = len(PROMPTS)) -> "Undisturbed":
        first = Streams(server, num_tokens=num_tokens, rounds=1, clients=clients).join()
        found = cls([text for _, text in sorted(first.texts)], 0.0)
        # The first time some things are slow that are not later.
        again = Streams(server, num_tokens=num_tokens, rounds=1, clients=clients).join()
        if wrong := [*first.lost, *again.lost, *found.changed(again)]:
            raise AssertionError(f"nothing has happened yet, and {wrong[0]}")
        return cls(found.texts, again.longest_gap())

    def changed(self, seen: Seen) -> list[str]:
        """Texts that are others than they were, in words."""
        return [
            f"stream {number} gave {text!r} for {self.texts[number]!r}"
            for number, text in seen.texts
            if text != self.texts[number]
        ]
