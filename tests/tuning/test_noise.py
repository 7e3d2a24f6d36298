"""What cannot be right is refused, and load on the machine is named."""

import os
from dataclasses import replace

import pytest

from ssd.tuning import noise
from ssd.tuning.measure import DraftFacts, Facts
from ssd.tuning.noise import LoadWatch, refuse_implausible
from tests.tuning.conftest import made_up_facts

FACTS = made_up_facts(acceptance=0.7)


def beside(facts: Facts, **ratios: float) -> Facts:
    draft: DraftFacts = replace(facts.drafts["int8"], **ratios)  # type: ignore[arg-type]
    return replace(facts, drafts={**facts.drafts, "int8": draft})


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (replace(FACTS, spread=20.5), "the target on all cores, by its own: 20.50 × as long"),
        (
            beside(FACTS, target_beside=9.0),
            r"the target beside the other model, by alone \(draft int8\): 9.00",
        ),
        (beside(FACTS, draft_beside=6.0), r"the draft beside the other model, by alone \(draft int8\): 6.00"),
    ],
)
def test_ratios_that_no_machine_has_are_refused(facts: Facts, said: str) -> None:
    with pytest.raises(ValueError, match=f"{said}.*Nothing is written: .*quiet"):
        refuse_implausible(facts)


def test_ratios_that_contention_explains_are_believed() -> None:
    refuse_implausible(beside(replace(FACTS, spread=1.4), target_beside=2.1, draft_beside=3.0))
    # Forwards of next to nothing: the host's work beside them is what was measured.
    tiny = made_up_facts(acceptance=0.7, verify=0.001, draft=0.001, int8=0.001)
    refuse_implausible(beside(replace(tiny, spread=20.5), target_beside=9.0, draft_beside=9.0))


def test_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = os.cpu_count() or 1
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1 * cores, 0.0, 0.0))
    monkeypatch.setattr(noise, "_processor_times", iter([[0] * 8, [90, 0, 0, 0, 0, 0, 0, 10]]).__next__)
    quiet = LoadWatch()
    assert quiet.at_the_start() == ""
    assert "10% of the processors' time went to other virtual machines" in quiet.meanwhile()
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0 * cores, 0.0, 0.0))
    monkeypatch.setattr(noise, "_processor_times", lambda: [5] * 8)
    busy = LoadWatch()
    assert "load 3.00 for each core" in busy.at_the_start()
    assert busy.meanwhile() == ""
