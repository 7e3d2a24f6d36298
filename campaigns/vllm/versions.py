"""Which versions of vLLM work with SSD: the table of docs/vllm-reference.md, from what was run and read.

    python -m campaigns.vllm.versions --record RECORD.jsonl

Needs the sources of the tested releases (`python -m ssd.integrations.vllm.contract` fetches them).
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.records import Record
from ssd.integrations.vllm import Runner
from ssd.integrations.vllm.contract import NEWEST, OLDEST, TESTED, broken, spelled
from ssd.integrations.vllm.released import CACHE, Releases


class Column(NamedTuple):
    heading: str
    runner: Runner
    is_async: bool


COLUMNS = (
    Column("V1", "v1", is_async=False),
    Column("V2, synchronous", "v2", is_async=False),
    Column("V2, asynchronous", "v2", is_async=True),
)


def table(lines: Sequence[Mapping[str, Any]], folder_of: Callable[[str], Path]) -> str:
    """Markdown; `lines` of the record, and `folder_of` a version's sources."""
    tested = (
        [each, *(_status(lines, each, folder_of(each), column) for column in COLUMNS)] for each in TESTED
    )
    rows = [
        ["vLLM", *(each.heading for each in COLUMNS)],
        ["---"] * (1 + len(COLUMNS)),
        [f"older than {spelled(OLDEST)}", *("refused" for _ in COLUMNS)],
        *tested,
        [f"newer than {spelled(NEWEST)}", *("expected" for _ in COLUMNS)],
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _status(lines: Sequence[Mapping[str, Any]], version: str, folder: Path, column: Column) -> str:
    if broken(folder, column.runner):
        return "refused"
    runs = [line for line in lines if _is_of(line, version, column)]
    are_equal = bool(runs) and all(line["equal"] == line["texts"] for line in runs)
    was_drafted = sum(line.get("accepted", 0) for line in runs) > 0
    # On V2 the tokens are also compared with those of stock vLLM.
    was_stock = column.runner == "v1" or any(line["case"].startswith("stock") for line in runs)
    return "validated" if are_equal and was_drafted and was_stock else "read"


def _is_of(line: Mapping[str, Any], version: str, column: Column) -> bool:
    """Whether a line compares texts in float32 of this version; not those of vLLM's own speculation."""
    run = line["run"]
    is_compared = "equal" in line and run.get("dtype") == "float32" and "own" not in line["case"]
    its_version = str(run.get("vllm", "")).partition("+")[0]
    its_runner, is_async = run.get("runner", "v1"), run.get("asynchronous", False)
    return is_compared and (its_version, its_runner, is_async) == (version, column.runner, column.is_async)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path(CACHE), help=f"where sources are kept ({CACHE})")
    arguments = parser.parse_args()
    releases = Releases(cache=arguments.cache)
    print(table(Record(arguments.record, {}).lines(), releases.sources_of))


if __name__ == "__main__":
    main()
