"""Results of the self-test's checks. Knows no checks."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "failed", "not run"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    part: str
    what: str
    found: str
    verdict: Verdict = "ok"
    why: str = ""
    """Reason for a verdict other than ok."""

    @property
    def is_failure(self) -> bool:
        return self.verdict == "failed"


def in_words(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def tried(part: str, results: Callable[[], Iterable[CheckResult]]) -> Iterator[CheckResult]:
    """A part's results. If the part raises, a failed result, so that other parts still run."""
    try:
        yield from results()
    except Exception as error:  # Any error is a result here.
        yield CheckResult(part, "ended early", "", "failed", f"{type(error).__name__}: {error}"[:300])
