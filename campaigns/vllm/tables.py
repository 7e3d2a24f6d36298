"""The record of campaigns/vllm as tables of Markdown.

    python -m campaigns.vllm.tables --record RECORD.jsonl [--runner v2]

A row is a case: how many of its texts are the same with and without a draft, and how many are those of stock
vLLM. The control, vLLM's own speculation, has rows of its own: it is compared with the texts of stock vLLM.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import Record

Line = Mapping[str, Any]
STOCK, CONTROL = "stock vLLM, ", "vLLM's own speculation, "
"""With which the names of cases begin that compare with the texts of another run."""
_COLUMNS = ("run", "case", "texts", "equal", "equal to stock", "accepted of drafted", "share of hits", "else")


def table(lines: Sequence[Line]) -> str:
    """`lines` of a record. Those of faults are left out: they are cases of another kind."""
    rows = [_COLUMNS, tuple("---" for _ in _COLUMNS), *_rows([each for each in lines if "texts" in each])]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def of_runner(lines: Sequence[Line], runner: str) -> list[Line]:
    return [each for each in lines if each["run"].get("runner", "v1") == runner]


def _rows(lines: Sequence[Line]) -> Iterator[tuple[str, ...]]:
    for line in lines:
        if not line["case"].startswith(STOCK):
            stock = [each for each in lines if _is_stock_of(each, line)]
            yield _control(line) if line["case"].startswith(CONTROL) else _compared(line, stock)


def _is_stock_of(line: Line, ours: Line) -> bool:
    return bool(line["case"] == STOCK + ours["case"] and line["run"] == ours["run"])


def _compared(line: Line, stock: Sequence[Line]) -> tuple[str, ...]:
    return (
        *(_run(line["run"]), line["case"], str(line["texts"]), str(line["equal"])),
        str(stock[0]["equal"]) if stock else "",
        f"{line['accepted']:.0f} of {line['drafted']:.0f}" if "drafted" in line else "",
        str(line.get("share of hits", "")),
        "; ".join((*_counted(line), *_gaps(line))),
    )


def _control(line: Line) -> tuple[str, ...]:
    return (_run(line["run"]), line["case"], str(line["texts"]), "", str(line["equal"]), "", "", "")


def _run(run: Line) -> str:
    """In words; what is as usual is left out."""
    words = [run["target"]] if run["target"] == run["draft"] else [run["target"], run["draft"]]
    words += [str(run[name]) for name in ("dtype", "prompts") if run.get(name)]
    words += [f"{run['tokens']} tokens"]
    words += [f"head {run['head_dtype']}"] if run.get("head_dtype") else []
    words += ["padded"] if run.get("padded") else []
    words += ["V2 of " + run["vllm"].partition("+")[0]] if run.get("runner") == "v2" else []
    words += ["asynchronous"] if run.get("asynchronous") else []
    words += [f"{run['kv_blocks']} KV blocks"] if run.get("kv_blocks") else []
    words += [f"{run['tensor_parallel']} ranks"] if run.get("tensor_parallel", 1) > 1 else []
    return ", ".join(words)


def _counted(line: Line) -> Iterator[str]:
    for name in ("preempted", "prefix hits"):
        if line.get(name):
            yield f"{name}: {line[name]:.0f}"


def _gaps(line: Line) -> Iterator[str]:
    """How far apart the best scores were where texts differ; a tie is at most the bound of rounding."""
    found = line.get("differences")
    if found is not None:
        gaps = ", ".join(str(each["gap"]) for each in found) or "none"
        bound = f" (bound {found[0]['bound']})" if found else ""
        yield f"gaps {gaps}{bound}; unexplained: {line['unexplained']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--runner", choices=("v1", "v2"), help="only this one's")
    arguments = parser.parse_args()
    lines = Record(arguments.record, {}).lines()
    print(table(lines if arguments.runner is None else of_runner(lines, arguments.runner)))


if __name__ == "__main__":
    main()
