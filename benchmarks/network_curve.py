"""What a draft that works ahead loses over a network: hits, tokens a round and speed against the round trip.

    python -m benchmarks.network_curve [--verify 6 20 200] [--batch 1 8] [--trip 0.05 0.2 1 5 20]

Target and draft are on hosts of their own, joined by TCP with keys and a relay that delays (tests/network; it
needs root on Linux). All is real but the two models: a rule and a sleep. A round trip of 0.05 ms is the
host's own loopback, which needs no relay. Speed is that over the same engine with the same draft in its own
process, in turns, which is measured before each row of round trips. Times in milliseconds. Each point is a
line of JSON in --record, whatever it held is kept; --picture draws what is there. --no-further: the draft
works no further ahead where the line is longer.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.flags import parser
from benchmarks.network_picture import draw
from tests.network.decoding import Pair, Target
from tests.network.hosts import Network
from tests.network.relay import Way

FLAGS: dict[str, object] = {
    "trip": [0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0],
    "verify": [6.0, 20.0, 200.0],
    "batch": [1, 8],
    "step": 2.0,
    "width": 4,
    "lookahead": 8,
    "seconds": 6.0,
    "no-further": False,
    "record": "runs/network.jsonl",
    "picture": None,
}
_RELAYS_OWN = 0.1
"""Milliseconds of a round trip over the relay that are its own work."""
_LOOPBACK = 0.1
"""Round trips below this many milliseconds have no relay between the two."""
_LEAST_ROUNDS = 40


def measure(target: Target, options: Any, verify: float) -> dict[str, float]:
    time.sleep(max(1.5, 8 * verify / 1e3))  # What is under way belongs to the setting before.
    seen = target.over(max(options.seconds, _LEAST_ROUNDS * verify / 1e3))
    num_tokens = seen.accepted + seen.rounds
    return {
        "hits": seen.hits / seen.rounds,
        "late": seen.late / seen.rounds,
        "unknown": seen.unknown / seen.rounds,
        "tokens": num_tokens / seen.rounds,
        "rate": num_tokens / seen.seconds,
    }


def points(pair: Pair, options: Any, verify: float, batch: int) -> Iterator[dict[str, Any]]:
    """One target for all round trips over the relay, and one for the loopback."""
    flags = ["--verify", str(verify / 1e3), "--batch", str(batch), "--lookahead", str(options.lookahead)]
    flags += ["--max-tokens", "400", *(["--no-further"] if options.no_further else [])]
    near = [trip for trip in options.trip if trip < _LOOPBACK]
    for host, trips in (("draft", near), ("target", [trip for trip in options.trip if trip not in near])):
        if not trips:
            continue
        target = pair.target(pair.address("draft"), *flags, host=host)
        try:
            for trip in trips:
                pair.network.everywhere(Way(delay=max(0.0, trip - _RELAYS_OWN) / 2e3))
                found = measure(target, options, verify)
                yield {"trip": trip, "verify": verify, "batch": batch, **found}
        finally:
            target.end()


def rate_in_turns(pair: Pair, options: Any, verify: float, batch: int) -> float:
    """Tokens a second with the draft in the target's own process."""
    flags = ["--verify", str(verify / 1e3), "--batch", str(batch), "--lookahead", str(options.lookahead)]
    flags += ["--in-turns", str(options.step / 1e3)]
    target = pair.target(pair.address("draft"), *flags)
    try:
        return measure(target, options, verify)["rate"]
    finally:
        target.end()


def run(options: Any, record: Path) -> None:
    with Network("target", "draft") as network, tempfile.TemporaryDirectory() as folder:
        pair = Pair.on(network, Path(folder) / "keys")
        draft = pair.draft("draft", "--step", str(options.step / 1e3), "--width", str(options.width))
        try:
            for verify in options.verify:
                for batch in options.batch:
                    turns = rate_in_turns(pair, options, verify, batch)
                    for point in points(pair, options, verify, batch):
                        point |= {"in turns": turns, "speed": point["rate"] / turns}
                        point |= {"further": not options.no_further}
                        print("  ".join(f"{name} {value:.4g}" for name, value in point.items()), flush=True)
                        with record.open("a") as file:
                            file.write(json.dumps(point) + "\n")
        finally:
            draft.end()


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    record = Path(options.record)
    if options.picture is not None:
        points = [json.loads(line) for line in record.read_text().splitlines()]
        Path(options.picture).write_text(draw(points))
        return
    record.parent.mkdir(parents=True, exist_ok=True)
    run(options, record)


if __name__ == "__main__":
    main()
