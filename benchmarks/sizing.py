"""Prints the table of docs/sizing.md: what `ssd plan` expects of usual pairs, by GPUs and users.

    python -m benchmarks.sizing

Everything is predicted from data sheets: no figure of it was measured. A test compares the page with it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.flags import parser
from ssd.planning.deployment import Offer, Site, Workload
from ssd.planning.hardware import find_device
from ssd.planning.models import find_model
from ssd.planning.rounds import Pair


class Setting(NamedTuple):
    target: str
    draft: str
    device: str
    tensor_parallel: int


SETTINGS = (
    Setting("llama-3.1-70b", "llama-3.2-1b", "h100", 4),
    Setting("llama-3.1-70b", "llama-3.2-1b", "h200", 2),
    Setting("qwen3-32b", "qwen3-0.6b", "h100", 2),
    Setting("qwen3-32b", "qwen3-0.6b", "a100", 2),
    Setting("llama-3.1-8b", "llama-3.2-1b", "h100", 1),
    Setting("qwen3-8b", "qwen3-0.6b", "l40s", 1),
)
BATCHES = (1, 4, 16)
ACCEPTANCE, COVERAGE = 0.8, 0.75
HEAD = (
    "target with draft",
    "GPUs",
    "users",
    "plain",
    "SD",
    "SSD",
    "SSD over SD",
    "GPUs over SD",
    "pays",
)


def rows(settings: Sequence[Setting] = SETTINGS) -> Iterator[tuple[str, ...]]:
    for setting in settings:
        for batch in BATCHES:
            found = offers(setting, batch)
            best, rival = found["ssd"], found["sd"]
            gain, cost = best.rate / rival.rate, best.num_devices / rival.num_devices
            yield (
                f"{setting.target} with {setting.draft}",
                f"{setting.tensor_parallel} + 1 {setting.device.upper()}",
                str(batch),
                *(f"{found[way].per_user:.0f}" for way in ("ar", "sd", "ssd")),
                f"{gain:.2f}",
                f"{cost:.2f}",
                "yes" if gain > cost else "no",
            )


def offers(setting: Setting, batch: int) -> dict[str, Offer]:
    """By mode, with the target's ranks as they are set."""
    pair = Pair(ACCEPTANCE, COVERAGE)
    workload = Workload(find_model(setting.target), find_model(setting.draft), pair, batch=batch)
    device = find_device(setting.device)
    found = Site(workload, device, device).offers(setting.tensor_parallel + 1)
    return {each.way: each for each in found if each.tp == setting.tensor_parallel}


def table() -> str:
    lines = [HEAD, ("---",) * len(HEAD), *rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser(__doc__, {}).parse_args()
    print(table())


if __name__ == "__main__":
    main()
