"""Runs rows of the exactness matrix from their seeds: `python -m tests.exact --seed 17 --seed 20003`."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.exact.engine import TargetWithDrafts
from tests.exact.rows import Row, matrix
from tests.exact.run import Exact


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seed", type=int, action="append", default=[], help="a row's seed, as it is printed"
    )
    parser.add_argument("--matrix", type=int, action="append", default=[], help="all rows of a matrix")
    options = parser.parse_args()
    rows = [*map(Row.drawn, options.seed), *(row for number in options.matrix for row in matrix(number))]
    num_faults, targets = 0, dict[str, Exact]()
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            if row.weights not in targets:
                targets[row.weights] = Exact(TargetWithDrafts(row.weights, Path(folder) / row.weights))
            ran = targets[row.weights].run(row)
            sys.stdout.write("\n    ".join((str(row), ran.summary, *ran.faults, "")) + "\n")
            num_faults += len(ran.faults)
    sys.exit(num_faults > 0)


if __name__ == "__main__":
    main()
