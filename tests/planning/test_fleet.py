"""Splits, batches and fleets: orders of magnitude that must hold, and sums that must add up."""

import pytest

from ssd.planning.advice import about_batches, about_engines, about_extra_device, about_room
from ssd.planning.deployment import Site, Workload
from ssd.planning.fleet import batch_rows, by_speed, cheapest, fleet_of, offers, shared_drafts, sharers
from ssd.planning.hardware import find_device
from ssd.planning.models import find_model


@pytest.fixture(scope="module")
def site() -> Site:
    h100 = find_device("h100", price=2.0)
    return Site(Workload(find_model("70B"), find_model("1B"), acceptance=0.88), h100, h100)


def test_splits_are_all_there_and_cost_what_they_take(site: Site) -> None:
    found = site.splits(5)
    assert {(each.way, each.tp) for each in found} == {
        ("ar", 2),
        ("ssd", 2),
        ("ar", 4),
        ("sd", 4),
        ("ssd", 4),
    }
    for each in found:
        assert each.price == pytest.approx(2.0 * each.num_devices)
        assert each.per_million == pytest.approx(2.0 * each.num_devices / (each.rate * 3600) * 1e6)
        assert each.rate <= 1.05 * each.roof
    by_way = {each.way: each for each in found if each.tp == 4}
    assert by_way["ssd"].rate > 1.3 * by_way["sd"].rate > 1.3 * by_way["ar"].rate


def test_a_useless_draft_is_not_recommended() -> None:
    h100 = find_device("h100")
    poor = Site(Workload(find_model("8B"), find_model("3B"), acceptance=0.1, coverage=0.1), h100, h100)
    said = " ".join(about_extra_device(poor.splits(2)))
    assert "does not pay" in said


def test_no_room_for_the_target_is_an_error_with_a_remedy(site: Site) -> None:
    with pytest.raises(ValueError, match="fp8"):
        site.splits(1)


def test_what_is_missing_is_said(site: Site) -> None:
    assert about_room(site, 5, 1) == ["No sd on 2: target and draft have no room there together."]
    core = find_device("spr-core")
    small = Site(Workload(find_model("8B"), find_model("1B"), acceptance=0.8), core, core)
    (said,) = about_room(small, 2, 1)
    assert "no link between them is known" in said


def test_a_draft_that_has_no_room_is_not_offered() -> None:
    work = Workload(find_model("70B"), find_model("qwen3-32b"), acceptance=0.88)
    small = Site(work, find_device("h200"), find_device("l40s"))
    assert not small.draft_fits(1)
    assert {each.way for each in small.splits(5)} == {"ar", "sd"}
    assert "No ssd: qwen3-32b has no room" in " ".join(about_room(small, 5, 1))
    assert {each.way for each in offers(small, (1,))} == {"ar", "sd"}
    assert all(row.ssd is None for row in batch_rows(small, 4, (1,)))


def test_speculation_helps_less_as_batches_grow(site: Site) -> None:
    assert [row.ssd for row in batch_rows(site, 4, (1,), most_devices=4)] == [None]
    rows = batch_rows(site, 4, (1, 256), most_devices=5)
    assert rows[0].pays_per_device
    assert rows[0].sd.rate / rows[0].ar.rate > rows[-1].sd.rate / rows[-1].ar.rate
    assert rows[-1].ssd is None  # beyond a draft step's width
    assert about_batches(rows)


def test_a_shared_draft_is_cheaper_and_no_faster(site: Site) -> None:
    count = sharers(site, 1, 12)
    assert count >= 8
    own, shared = site.ssd(4), site.ssd(4, sharers=count)
    assert shared.per_million is not None
    assert own.per_million is not None
    assert shared.per_million < own.per_million
    assert shared.rate <= 1.05 * own.rate


def test_fleets_add_up(site: Site) -> None:
    found = offers(site, (1,))
    rows = by_speed(found, 1e6, (20, 200, 10_000))
    assert rows[-1].fleet is None
    for row in rows[:-1]:
        assert row.fleet is not None
        fleet, offer = row.fleet, row.fleet.offer
        assert offer.per_user >= row.speed
        assert fleet.num_replicas * offer.rate >= 1e6 > (fleet.num_replicas - 1) * offer.rate
        assert fleet.num_devices == fleet.num_replicas * offer.tp + fleet.num_drafts
        assert fleet.price == pytest.approx(2.0 * fleet.num_devices)
    assert cheapest(found, 1e9) is None
    assert fleet_of(site.ar(4), 1.0).num_replicas == 1


def test_a_shared_draft_serves_several_targets(site: Site) -> None:
    rows = shared_drafts(site, (8, 512))
    assert [row.num_targets for row in rows] == [8, 512]
    assert rows[1].num_drafts == -(-512 // sharers(site, 1, 12)) < 512


def test_who_has_tensor_parallelism_is_said(site: Site) -> None:
    (said,) = about_engines(site.splits(5))
    assert "TP above 1 are for vLLM" in said
    assert about_engines([site.ar(1)]) == []
