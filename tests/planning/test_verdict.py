"""Whether SSD pays, in one line: by the draft's step, and by what a shared GPU costs."""

import pytest

from ssd.planning.deployment import Site, Workload
from ssd.planning.hardware import find_device
from ssd.planning.models import find_model
from ssd.planning.rounds import Pair
from ssd.planning.times import Forward, PairTimes
from ssd.planning.verdict import about_sharing, sharing, verdict


@pytest.fixture
def site() -> Site:
    work = Workload(find_model("8B"), find_model("1B"), Pair(0.8, 0.75))
    return Site(work, find_device("h100"), find_device("h100"))


def test_a_gpu_of_its_own_pays_and_taking_turns_on_one_does_not(site: Site) -> None:
    pays, words = verdict(site, num_devices=2)
    assert pays
    assert words.startswith("pays: 2.")
    assert "with the draft on a GPU of its own" in words
    assert "a draft step 2.0 ms (arithmetic)" in words
    assert "0.80 of first guesses are right" in words
    pays, words = verdict(site, num_devices=1)
    assert not pays
    assert words.startswith("does not pay: 1.")
    assert "on the same GPU, without MPS" in words
    assert words.endswith("; use vLLM with its own speculation instead")
    assert verdict(site, num_devices=1, has_mps=True)[0]


def test_a_slow_draft_step_does_not_pay_and_vllms_own_draft_is_not_as_slow(site: Site) -> None:
    pays, words = verdict(site, num_devices=2, draft_step=5e-3)
    assert not pays
    assert "a draft step 5.0 ms (measured)" in words
    own = words.partition("own speculation ")[2].split()[0]
    assert own in verdict(site, num_devices=2)[1]


def test_where_nothing_helps_vllm_alone_is_named() -> None:
    work = Workload(find_model("8B"), find_model("3B"), Pair(0.1, 0.1))
    site = Site(work, find_device("h100"), find_device("h100"))
    assert verdict(site, num_devices=1)[1].endswith("; use vLLM alone instead")


def test_a_plan_says_it_of_one_device_where_both_fit(site: Site) -> None:
    with_mps, without = about_sharing(site)
    assert with_mps.startswith("Sharing one device pays: 2.")
    assert without.startswith("Sharing one device does not pay: 1.")
    work = Workload(find_model("70B"), find_model("1B"), Pair(0.8, 0.75))
    assert about_sharing(Site(work, find_device("h100"), find_device("h100"))) == []


def test_side_by_side_both_slow_down_by_what_they_want_of_the_bandwidth() -> None:
    times = PairTimes(Forward(floor=3e-3, overhead=1e-3), Forward(floor=1e-3, overhead=1e-3))
    assert sharing(times, has_mps=True).target_beside == pytest.approx(0.75 + 0.5)
    assert sharing(times, has_mps=False).draft_beside == 2.0
    idle = PairTimes(Forward(floor=1e-3, overhead=9e-3), Forward(floor=1e-3, overhead=9e-3))
    assert sharing(idle, has_mps=True).target_beside == 1.0
