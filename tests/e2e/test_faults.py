"""Whatever happens to the draft or the line to it: the AR tokens, and nothing left behind.

The small form of `python -m campaigns.e2e.faults`, which runs 450 trials. CI strikes with three of the
wire's faults; simulated pools meet the others (tests/draft/test_simulation.py).
"""

import pytest

from campaigns.e2e.faults import PROCESS_FAULTS, Bench, Trial
from campaigns.e2e.faulty_link import KINDS, WIRE_FAULTS


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("models"))


IN_CI = ("drop", "lie", "reorder")
EACH = [pytest.param(each, marks=[] if each in IN_CI else pytest.mark.slow) for each in WIRE_FAULTS]


@pytest.mark.parametrize("fault", EACH)
def test_faults_of_the_wire(bench: Bench, fault: str) -> None:
    results = [bench.run(Trial(fault, kind, seed)) for seed, kind in enumerate(KINDS)]
    assert sum(each.num_struck for each in results) > 0
    assert [each.wrong for each in results] == [0] * len(KINDS)
    assert [each.leaks for each in results] == [0] * len(KINDS)


@pytest.mark.parametrize("fault", PROCESS_FAULTS)
def test_a_draft_that_dies_or_hangs(bench: Bench, fault: str) -> None:
    results = [bench.run(Trial(fault, "any", seed)) for seed in range(4)]
    assert [each.wrong + each.leaks for each in results] == [0] * 4
    # Speculation comes back.
    assert all(each.hits for each in results)
