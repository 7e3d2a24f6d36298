"""Splits of devices: orders of magnitude that must hold, and ways that must be missing with a reason."""

import pytest

from ssd.planning.advice import about_engines, about_extra_device, about_room
from ssd.planning.deployment import Site, Workload
from ssd.planning.hardware import find_device
from ssd.planning.models import find_model
from ssd.planning.rounds import Pair


def site_of(
    target: str, draft: str, pair: Pair, *, device: str = "h100", draft_device: str = "h100", batch: int = 1
) -> Site:
    work = Workload(find_model(target), find_model(draft), pair, batch=batch)
    return Site(work, find_device(device), find_device(draft_device))


@pytest.fixture
def site() -> Site:
    return site_of("70B", "1B", Pair(0.88, 0.75))


def test_all_splits_are_there_and_none_is_above_its_roof(site: Site) -> None:
    found = site.offers(5)
    assert {(each.way, each.tp) for each in found} == {
        ("ar", 2), ("ssd", 2), ("ar", 4), ("sd", 4), ("ssd", 4),
    }  # fmt: skip
    for each in found:
        assert each.rate <= each.roof
        assert each.num_devices == each.tp + (each.way == "ssd")
        assert each.per_device == pytest.approx(each.rate / each.num_devices)
    by_way = {each.way: each for each in found if each.tp == 4}
    assert by_way["ssd"].rate > 1.3 * by_way["sd"].rate > 1.3 * by_way["ar"].rate


def test_a_useless_draft_is_not_recommended() -> None:
    poor = site_of("8B", "3B", Pair(0.1, 0.1))
    assert "does not pay" in " ".join(about_extra_device(poor.offers(2)))


def test_no_room_for_the_target_is_an_error_with_a_remedy(site: Site) -> None:
    with pytest.raises(ValueError, match="fp8"):
        site.offers(1)


def test_what_is_missing_is_said(site: Site) -> None:
    assert about_room(site, 5) == ["No sd on 2: target and draft do not fit there together."]
    (said,) = about_room(site_of("8B", "1B", Pair(0.8, 0.75), device="spr-core"), 2)
    assert "no link between them is known" in said


def test_a_draft_that_has_no_room_is_not_offered() -> None:
    small = site_of("70B", "qwen3-32b", Pair(0.88, 0.75), device="h200", draft_device="l40s")
    assert not small.draft_fits
    assert {each.way for each in small.offers(5)} == {"ar", "sd"}
    assert "No ssd: qwen3-32b has no room" in " ".join(about_room(small, 5))


def test_speculation_helps_less_as_batches_grow() -> None:
    one, many = (site_of("70B", "1B", Pair(0.88, 0.75), batch=batch) for batch in (1, 256))
    assert one.sd(4).rate / one.ar(4).rate > many.sd(4).rate / many.ar(4).rate
    assert "ssd" not in {each.way for each in many.offers(5)}, "more sequences than rows of a draft step"


def test_who_has_tensor_parallelism_is_said(site: Site) -> None:
    (said,) = about_engines(site.offers(5))
    assert "TP above 1 are for vLLM" in said
    assert about_engines([site.ar(1)]) == []
