"""What may happen to a draft while vLLM serves eight streams: it is killed, or stands still for a while.

No request may be lost, no token changed, none wait for it; and hits return soon after the draft does, also
for a server that had nothing to do meanwhile. A draft on a core that server and clients use too may be too
slow for eight streams: then it is let rest, and hits say nothing. A shared machine stands still by itself
now and then: a stall counts if it happens again. What was seen of each case is a line of plain values;
`wrong` says in words what should not have been.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.served import Served
from benchmarks.streams import Seen, Streams, Undisturbed
from campaigns.vllm.cases import PROMPTS
from ssd.draft.client.replica import LONGEST_DELAY
from tests.alive import is_alive
from tests.server.process import until

RETURN_SECONDS = 10.0 + LONGEST_DELAY
"""In which hits come back once the draft has. After a long absence the target waits for up to `LONGEST_DELAY`
until it connects again."""
_RESTART_SECONDS = 120.0
_STALL_SECONDS = 2.0
"""Between two pieces of a text, over what is usual: far less than the silence after which a draft is lost."""
_TRIALS = 3
"""In each of which a stream has to stand still before it is the draft's doing."""


@dataclass(slots=True)
class Disturbances:
    server: Served
    usual: Undisturbed
    num_tokens: int
    needs_hits: bool = True
    """False, for a draft that cannot keep up with eight streams: it has to speak, or is let rest."""
    clients: int = len(PROMPTS)
    """Streams at once."""

    def kill(self, chance: Random, *, idle: bool) -> dict[str, Any]:
        def until_started_again() -> list[str]:
            pid, engines = self.server.draft_pid(), self.server.engine_pids()
            os.kill(pid, signal.SIGKILL)
            until(lambda: not is_alive(pid), what=f"the end of draft {pid}")
            is_back = self.server.await_draft(_RESTART_SECONDS)
            return [
                *([] if is_back else [f"no draft within {_RESTART_SECONDS} s"]),
                *([] if engines and self.server.engine_pids() == engines else ["vLLM was started again"]),
            ]

        return self.disturb(until_started_again, chance, is_idle=idle)

    def freeze(self, chance: Random, *, idle: bool) -> dict[str, Any]:
        def stand_still() -> list[str]:
            pid = self.server.draft_pid()
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(chance.uniform(0.5, 15.0))
            finally:
                os.kill(pid, signal.SIGCONT)
            return [] if self.server.draft_pid() == pid else ["the draft was started again"]

        return self.disturb(stand_still, chance, is_idle=idle)

    def disturb(self, happens: Callable[[], list[str]], chance: Random, *, is_idle: bool) -> dict[str, Any]:
        """`happens` comes back when the draft does, and says what is wrong."""
        stalls = list[float]()
        while True:
            found, stall = self._disturb_once(happens, chance, is_idle=is_idle)
            if stall:
                stalls.append(round(stall, 2))
            if found["wrong"] or not stall:
                return {**found, "stalls": stalls}
            if len(stalls) == _TRIALS:
                return {**found, "stalls": stalls, "wrong": [f"streams stood still for {stalls} s"]}

    def _disturb_once(
        self, happens: Callable[[], list[str]], chance: Random, *, is_idle: bool
    ) -> tuple[dict[str, Any], float]:
        """What was seen, and for how long a stream stood still that should not have."""
        streams = None if is_idle else self._streams()
        try:
            time.sleep(chance.uniform(0.2, 5.0))
            left = time.monotonic()
            wrong = happens()
            since = back = time.monotonic()
            if streams is None:
                time.sleep(chance.uniform(0.0, 3.0))
                streams, since = self._streams(), time.monotonic()
            hits = self._await_return(since)
            time.sleep(chance.uniform(0.0, 1.0))
        finally:
            seen = streams.stop() if streams is not None else Seen()
        during = seen.longest_gap() if is_idle else seen.longest_gap(left, back)
        found = {
            "idle": is_idle,
            "away_seconds": round(back - left, 2),
            "returned_after_seconds": round(hits, 2),
            "requests": len(seen.texts) + len(seen.lost),
            "equal": len(seen.texts) - len(self.usual.changed(seen)),
            "longest_gap": round(during, 3),
            "wrong": [*wrong, *self._wrong(seen, hits)],
        }
        is_stall = seen.longest_gap() > self.usual.longest_gap + _STALL_SECONDS
        return found, seen.longest_gap() if is_stall else 0.0

    def _await_return(self, since: float) -> float:
        """Seconds until there were more hits, or words, or until it was given up."""
        sign = "ssd_spec_hits_total" if self.needs_hits else "ssd_draft_frames"
        before = self.server.counted(sign)
        while self.server.counted(sign) <= before and time.monotonic() - since < 2 * RETURN_SECONDS:
            if not self.needs_hits and self.server.counted("ssd_draft_resting"):
                break
            time.sleep(0.05)
        return time.monotonic() - since

    def _wrong(self, seen: Seen, hits: float) -> list[str]:
        wrong = [*seen.lost, *self.usual.changed(seen)]
        if hits > RETURN_SECONDS:
            wrong.append(f"{'hits' if self.needs_hits else 'words'} returned after {hits:.1f} s")
        if self.server.counted("ssd_draft_up") != 1:
            wrong.append("the draft is back, and the worker does not know")
        return wrong

    def _streams(self) -> Streams:
        return Streams(self.server, num_tokens=self.num_tokens, clients=self.clients)
