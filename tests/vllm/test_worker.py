"""What our worker adds to vLLM's, without a running one: seeds kept from its runner, a contract kept."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

from vllm import SamplingParams

from ssd.integrations.vllm import worker as worker_module
from ssd.integrations.vllm.contract import entries
from ssd.integrations.vllm.requests import with_seeds
from ssd.integrations.vllm.sampler import CoupledRejectionSampler, CoupledSampler
from ssd.integrations.vllm.settings import Settings
from ssd.integrations.vllm.vllm_names import BOTH, V1
from ssd.integrations.vllm.worker import SSDWorker
from tests.vllm.records import new, scheduled


def without_seeds(record: Any) -> Any:
    return with_seeds(record, lambda _request_id, _seed: None)


def test_the_runner_gets_no_seed_and_the_scheduler_keeps_it() -> None:
    params = SamplingParams(seed=7, temperature=0.8, top_p=0.9, max_tokens=5)
    seeded, unseeded = new("a", sampling_params=params), new("b", sampling_params=SamplingParams())
    record = scheduled(seeded, unseeded, finished=["c"], drafted={"d": [1, 2]})
    changed = without_seeds(record)
    [for_runner, other] = changed.scheduled_new_reqs
    assert for_runner.sampling_params.seed is None
    assert other is unseeded
    # Nothing else is different.
    for_runner.sampling_params.seed = 7
    assert for_runner == seeded
    assert changed == SimpleNamespace(**{**vars(record), "scheduled_new_reqs": [for_runner, other]})
    # The scheduler's own records are as they were.
    assert record.scheduled_new_reqs == [seeded, unseeded]
    assert seeded.sampling_params is params
    assert params.seed == 7


def test_only_requests_with_a_seed_are_copied() -> None:
    """A seed of zero is a seed; a request that only pools has none."""
    pooling, seeded = new("a", sampling_params=None), new("b", sampling_params=SamplingParams(seed=0))
    changed = without_seeds(scheduled(pooling, seeded)).scheduled_new_reqs
    assert changed[0] is pooling
    assert changed[1].sampling_params.seed is None
    record = scheduled(new("a", sampling_params=SamplingParams()), pooling)
    assert without_seeds(record) is record


@pytest.mark.parametrize(
    ("version", "rank", "warnings"), [("0.99.0", 0, 1), ("0.99.0", 1, 0), ("0.32.0", 0, 0)]
)
def test_the_first_rank_warns_once_of_a_version_that_was_never_run(
    version: str,
    rank: int,
    warnings: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init(self: Any, vllm_config: Any, rank: int) -> None:
        self.rank = rank

    monkeypatch.setattr(worker_module, "checked_settings", lambda *_: Settings())
    monkeypatch.setattr(worker_module, "installed_version", lambda: version)
    monkeypatch.setattr(SSDWorker.__mro__[1], "__init__", init)
    said = list[str]()
    monkeypatch.setattr(worker_module.logger, "warning", said.append)
    SSDWorker(None, rank)
    assert sum("vLLM 0.99.0 has every name" in each for each in said) == warnings


@pytest.mark.parametrize("ours", [SSDWorker, CoupledSampler, CoupledRejectionSampler])
def test_every_method_that_is_overridden_is_in_the_contract(ours: type) -> None:
    """Constructors of samplers are ours to call."""
    vllms = ours.__mro__[1]
    listed = {name for _, name, _ in entries(BOTH.overridden + V1.overridden)} | {
        f"{name}.__init__" for _, name, _ in entries(V1.called)
    }
    overridden = [
        name for name, each in vars(ours).items() if callable(each) and callable(getattr(vllms, name, 0))
    ]
    assert overridden
    assert {f"{vllms.__name__}.{name}" for name in overridden} <= listed
