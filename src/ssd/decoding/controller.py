"""How much speculation a step carries: never more than pays, by the times and chances measured.

A step with r query rows takes T(r); it yields one token for each sequence and, with the chance the
draft gives it, each drafted token. The controller takes drafted tokens in the order of their
chances, over all sequences, up to the number that yields most per second. Where plain decoding is
faster that number is 0. Knows times and chances; no tokens, no draft.
"""

from collections.abc import Sequence

_SMOOTHING = 0.25
"""Weight of the newest time."""
_MEMORY = 128
"""Steps after which a time that was not seen again is forgotten, and so tried again."""
_LEAST_CHANCE = 0.04
"""Below this a drafted token is noise."""


class VerifyTimes:
    """T(r): seconds of a step by its number of query rows."""

    def __init__(self) -> None:
        self._times: dict[int, tuple[float, int]] = {}
        self._num_steps = 0

    def note(self, num_rows: int, seconds: float) -> None:
        self._num_steps += 1
        bucket = _bucket(num_rows)
        known = self._times.get(bucket)
        smoothed = seconds if known is None else known[0] + _SMOOTHING * (seconds - known[0])
        self._times[bucket] = (smoothed, self._num_steps)
        for old in [b for b, (_time, seen) in self._times.items() if self._num_steps - seen > _MEMORY]:
            del self._times[old]

    def expected(self, num_rows: int) -> float:
        """The time seen for this many rows; between two known numbers a line; beyond them the nearest."""
        if not self._times:
            return 1.0
        bucket = _bucket(num_rows)
        below = max((b for b in self._times if b <= bucket), default=None)
        above = min((b for b in self._times if b >= bucket), default=None)
        if below is None or above is None:
            nearest = above if below is None else below
            return self._times[nearest][0] if nearest is not None else 1.0
        low, high = self._times[below][0], self._times[above][0]
        share = 0.0 if above == below else (bucket - below) / (above - below)
        # More rows never take less time: what says so is noise.
        return low + share * max(0.0, high - low)


class Controller:
    def __init__(self) -> None:
        self.times = VerifyTimes()
        self._first_rate = 0.7
        """How often the first drafted token is accepted."""
        self._wait = 0.0

    def choose(self, chances: Sequence[Sequence[float]], num_rows: int) -> list[int]:
        """How many drafted tokens of each sequence to verify, `num_rows` being verified anyway."""
        offers = sorted(
            (
                (chance, index)
                for index, each in enumerate(chances)
                for chance in each
                if chance > _LEAST_CHANCE
            ),
            key=lambda offer: -offer[0],
        )
        yielded, best_count = float(len(chances)), 0
        best_rate = yielded / self.times.expected(num_rows)
        for count, (chance, _index) in enumerate(offers, 1):
            yielded += chance
            rate = yielded / self.times.expected(num_rows + count)
            if rate > best_rate:
                best_rate, best_count = rate, count
        lengths = [0] * len(chances)
        for _chance, index in offers[:best_count]:
            lengths[index] += 1
        return lengths

    def note_first(self, *, accepted: bool) -> None:
        self._first_rate += 0.05 * (float(accepted) - self._first_rate)

    def note_wait(self, seconds: float) -> None:
        self._wait = seconds if not self._wait else self._wait + _SMOOTHING * (seconds - self._wait)

    def longest_wait(self, num_rows: int, draft_step: float) -> float:
        """Seconds worth waiting for a drafted token: less than what it saves. 0: do not wait."""
        gain = self._first_rate * self.times.expected(num_rows)
        expected = self._wait or 1.5 * draft_step
        return gain if 0 < expected < gain else 0.0


def _bucket(num_rows: int) -> int:
    return num_rows if num_rows <= 16 else -(-num_rows // 8) * 8
