"""Every fault still has its place in the source. Whether it is noticed: `python -m tests.faults`."""

import ast

import pytest

from tests.faults.blind import BLIND
from tests.faults.fault import BlindFault, Fault
from tests.faults.run import ROOT, all_faults, faulty


@pytest.mark.parametrize("fault", all_faults(), ids=lambda fault: fault.name)
def test_a_fault_has_its_place_and_its_test(fault: Fault) -> None:
    source = (ROOT / fault.path).read_text()
    assert faulty(source, fault) != source
    path, _, name = fault.test.partition("::")
    assert name.split("::")[0].split("[")[0] in (ROOT / path).read_text()


@pytest.mark.parametrize("fault", BLIND, ids=lambda fault: fault.name)
def test_a_blind_fault_has_its_place_and_compiles(fault: BlindFault) -> None:
    source = (ROOT / fault.path).read_text()
    assert ast.dump(ast.parse(faulty(source, fault))) != ast.dump(ast.parse(source))


def test_names_tell_faults_apart() -> None:
    names = [fault.name for fault in (*all_faults(), *BLIND)]
    assert len(set(names)) == len(names)
