"""Two drafts, six targets, and drafts that are killed, drained and upgraded under them.

    python -m campaigns.e2e.pool_strikes --model SMOLLM2_FOLDER --strikes 100 --record docs/records/pool.jsonl

Two targets are the model itself, four its first layers: small, and of the same tokenizer, so that all six
share both drafts, which are the model too. Each strike ends one of the drafts (SIGKILL, SIGTERM, or SIGTERM
and another width when it comes back), under load. Of each target whose sequences went to the other draft
it is measured how long that took, and how long from there until there were hits again; of a small one, which
the drafts rarely guess right, until it was foretold something in time. Each draft has a core
of its own, which it shares with targets that mostly sleep. A strike is a line of the record; what is there is
not done again. Ends with 1 if a token changed, a request was lost, or either took longer than --soon.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.records import Record
from campaigns.e2e.other_drafts import cut_draft
from tests.e2e.drafts import Drafts
from tests.network.decoding import Target

HOW = {"killed": signal.SIGKILL, "drained": signal.SIGTERM, "upgraded": signal.SIGTERM}
NAMES = ("one", "two")
_PATIENCE = 180.0


class Here:
    """This machine, where a program is started as it is."""

    def command(self, host: str, program: Sequence[str]) -> list[str]:
        return list(program)


def start_targets(models: Sequence[Path], addresses: str, *flags: str) -> list[Target]:
    where: Any = Here()
    targets = [
        Target(
            where, "here", ["campaigns.e2e.pool_target", str(model), addresses, "--first", str(place), *flags]
        )
        for place, model in enumerate(models)
    ]
    for target in targets:
        target.until(partial(_has_hit, target), _PATIENCE)
    return targets


def _has_hit(target: Target) -> bool:
    return bool(target.lines and target.now("hits") > 0)


def strike(
    drafts: Drafts, targets: Sequence[Target], name: str, how: str, *, width: int, num_large: int
) -> dict[str, Any]:
    """Ends a draft, starts it again, and looks at what the targets have said meanwhile."""
    places = [len(target.lines) - 1 for target in targets]
    started = time.monotonic()
    drafts.strike(name, HOW[how])
    drafts.start(name, *(["--width", str(width)] if how == "upgraded" else []))
    for target in targets:
        target.until(partial(_has_all, target), _PATIENCE)
    said = [target.lines[place:] for target, place in zip(targets, places, strict=True)]
    delays = [
        delays_of(lines, started, "hits" if place < num_large else "foretold")
        for place, lines in enumerate(said)
        if lines[-1]["moved"] > lines[0]["moved"]
    ]
    return {
        "how": how,
        "draft": name,
        "moved": sum(each[-1]["moved"] - each[0]["moved"] for each in said),
        "switched": round(max((switch for switch, _hits in delays), default=0.0), 2),
        "slowest": round(max((hits for _switch, hits in delays), default=0.0), 2),
        "ended": sum(each[-1]["ended"] - each[0]["ended"] for each in said),
        "wrong": sum(each[-1]["wrong"] for each in said),
        "lost": sum(target.process.poll() is not None for target in targets),
    }


def _has_all(target: Target) -> bool:
    return bool(target.now("ready") == len(NAMES))


def delays_of(lines: Sequence[dict[str, Any]], started: float, wanted: str) -> tuple[float, float]:
    """Of a target whose sequences had to go elsewhere: from the strike to that, and from there to a hit."""
    moved = [each for each in lines if each["moved"] > lines[0]["moved"]]
    again = [each["at"] for each in moved if each[wanted] > moved[0][wanted]]
    return moved[0]["at"] - started, again[0] - moved[0]["at"] if again else _PATIENCE


def run(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    small = cut_draft(options.model, options.layers, folder / "small")
    models = [options.model] * options.large + [small] * options.small
    settings = {name: getattr(options, name) for name in ("large", "small", "layers", "pause", "cores")}
    record = Record(options.record or folder / "pool.jsonl", {"model": options.model.name, **settings})
    cores = dict(zip(NAMES, options.cores, strict=True))
    drafts = Drafts(dict.fromkeys(NAMES, options.model), folder, "--name", "pool", cores=cores)
    targets = list[Target]()
    try:
        targets = start_targets(models, drafts.addresses, "--pause", str(options.pause))
        done = list[dict[str, Any]]()
        for number in range(options.strikes):
            chance, case = random.Random(number), f"strike {number}"
            found = record.find(case)
            if found is None:
                name, how = chance.choice(NAMES), chance.choice([*HOW])
                width = chance.choice([8, 12])
                found = strike(drafts, targets, name, how, width=width, num_large=options.large)
                record.add(case, found)
                sys.stdout.write(f"{case}: {found}\n")
            done.append(found)
        return done
    finally:
        for target in targets:
            target.end()
        drafts.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--strikes", type=int, default=100)
    parser.add_argument("--large", type=int, default=2)
    parser.add_argument("--small", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4, help="of the small targets")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds before each forward of a target")
    parser.add_argument("--cores", nargs=2, default=["0", "1"], help="of the drafts")
    parser.add_argument("--soon", type=float, default=2.0)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pool-") as folder:
        done = run(options, Path(folder))
    slowest = max(each[which] for each in done for which in ("switched", "slowest"))
    wrong = sum(each["wrong"] for each in done)
    lost = sum(each["lost"] for each in done)
    sys.stdout.write(f"{len(done)} strikes: {wrong} wrong, {lost} lost, {slowest:.2f} s at most\n")
    return int(wrong > 0 or lost > 0 or slowest > options.soon)


if __name__ == "__main__":
    sys.exit(main())
