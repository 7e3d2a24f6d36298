"""A server for an hour: mixed traffic, drafts that are killed, and clients that mean harm, all at once.

    python -m campaigns.e2e.soak --minutes 60

Traffic is that of `campaigns.e2e.load`, whose every answer is compared with the one computed alone; beside it
hostile clients (hostile.py) try grammars, half-sent requests, long texts and streams that nobody reads. Ends
with 1 if an answer changed, a request was lost, or memory, files, threads, KV blocks or sessions are not what
they were. Figures of the first half and of the second are printed.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from campaigns.e2e.hostile import ATTACKS, Aim, Harm, attack, send_a_long_prompt
from campaigns.e2e.load import Attacker, Load, Report, run
from tests.server.process import ServerProcess

_KILL_EVERY = 60.0
_TYPES = {**ATTACKS, "S2": send_a_long_prompt}


def soak(
    *, seconds: float, clients: int, attackers: int, num_cases: int, folder: Path, growth: float = 0.05
) -> Report:
    def hostile(server: ServerProcess) -> Sequence[Attacker]:
        aim = Aim(url=server.url, model="tiny", long_prompt="the " * 300, held_seconds=min(60.0, seconds / 3))

        async def one(number: int, harm: Harm, until: float) -> None:
            await attack(aim, harm, _TYPES, f"hostile {number}", until)

        return [partial(one, number) for number in range(attackers)]

    num_kills = max(1, round(seconds / _KILL_EVERY))
    load = Load(clients=clients, seconds=seconds, num_cases=num_cases, num_kills=num_kills, growth=growth)
    return run(load, folder, hostile)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--attackers", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        report = soak(
            seconds=60 * given.minutes,
            clients=given.clients,
            attackers=given.attackers,
            num_cases=300,
            folder=Path(folder),
        )
    print(report)
    sys.exit(0 if report.is_perfect else 1)


if __name__ == "__main__":
    main()
