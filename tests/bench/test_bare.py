"""Bare forwards are timed where they will be spent: a draft's on the draft's device and cores."""

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ssd.bench.bare import BareModels
from ssd.bench.bare_forward import load_bare_draft
from ssd.bench.cases import Case, cases_of
from ssd.bench.engines import CaseEngines
from ssd.runtime.cores import can_pin, move_to_cores
from ssd.runtime.eager import EagerRunner

Cores = frozenset[int]


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, set[tuple[Cores, int]]]]:
    """By runner: on which cores, and with how many threads, its forwards were computed."""
    seen = defaultdict[int, set[tuple[Cores, int]]](set)
    launch = EagerRunner.launch

    def noting(runner: EagerRunner, *arguments: Any, **named: Any) -> Any:
        seen[id(runner)].add((frozenset(os.sched_getaffinity(0)), torch.get_num_threads()))
        return launch(runner, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(EagerRunner, "launch", noting)
        yield seen


def place(cores: tuple[int, ...]) -> tuple[Cores, int]:
    return frozenset(cores), len(cores)


@pytest.fixture
def own_cores(engines: CaseEngines) -> CaseEngines:
    if not engines.draft_cores or not can_pin():
        pytest.skip("target and draft have no cores of their own here")
    # Tests before this one may have left the process elsewhere.
    move_to_cores(engines.config.cores)
    return engines


def test_a_draft_computes_on_its_own_cores(own_cores: CaseEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ahead of the target it does; in turns it computes on the target's."""
    bare, config = BareModels(own_cores, cases_of("ar,sd2,ssd+width6", [0.0], [1])), own_cores.config
    with watched(monkeypatch) as seen:
        found = bare.forwards("fox", 0)
    target = id(own_cores.engine.loaded.runner)
    assert seen.pop(target) == {place(config.cores)}
    assert list(seen.values()) == [{place(config.cores), place(own_cores.draft_cores)}]
    assert set(found.draft_seconds["model"]) == {1, 6}
    assert os.sched_getaffinity(0) == set(config.cores), "the target is left where it was"


def test_what_was_sampled_is_averaged_and_topped_up(
    engines: CaseEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = BareModels(engines, cases_of("ar,ssd", [0.0], [1]))
    num_forwards = len(bare.sample())
    taken: list[list[float]] = []

    def nine() -> list[float]:
        taken.append([9.0] * num_forwards)
        return taken[-1]

    monkeypatch.setattr(bare, "sample", nine)
    given = [[float(place)] * num_forwards for place in (1, 2, 6, 7)]
    found = bare.forwards("fox", 0, given)
    assert set(found.target_seconds.values()) == {4.0}
    assert set(found.draft_seconds["model"].values()) == {4.0}
    assert taken == []
    assert set(bare.forwards("fox", 0, given[:2]).target_seconds.values()) == {4.0}  # 1, 2 and 9
    assert len(taken) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="the draft's device is there")
def test_a_draft_is_loaded_on_its_own_device(engines: CaseEngines) -> None:
    config = engines.config_of(Case(mode="ssd")).changed({"draft": {"device": "cuda"}})
    with pytest.raises(ValueError, match="torch sees no CUDA device"):
        load_bare_draft(config)
