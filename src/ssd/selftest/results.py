"""What a self-test says: a line for each thing that was tried, with a verdict. Knows no tests."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "slower than expected", "failed", "failed: replaced by its torch form", "not run"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    part: str
    what: str
    found: str
    verdict: Verdict = "ok"
    why: str = ""
    """Of any verdict but ok; or what was expected."""

    @property
    def is_failure(self) -> bool:
        return self.verdict.startswith("failed")


def at_most(part: str, what: str, seconds: float, expected: float, why: str) -> CheckResult:
    """A time beside what was expected of it; noise is no news."""
    found = f"{in_words(seconds)}, expected about {in_words(expected)}"
    return CheckResult(
        part, what, found, "ok" if seconds <= _TOLERANCE * expected else "slower than expected", why
    )


_TOLERANCE = 2.0
"""A machine that others use has bad moments; what matters is more than twofold."""


def in_words(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def tried(part: str, results: Callable[[], Iterable[CheckResult]]) -> Iterator[CheckResult]:
    """A part's lines; should it fail altogether, one that says so, and the others go on."""
    try:
        yield from results()
    except Exception as error:  # Whatever it is: the page is for those who look for it.
        yield CheckResult(part, "ended early", "", "failed", f"{type(error).__name__}: {error}"[:300])
