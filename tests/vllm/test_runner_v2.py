"""What the worker changes in vLLM's V2 runner, piece by piece, with vLLM's own classes."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput

from ssd.integrations.vllm import runner_v2
from ssd.integrations.vllm.batch_rows import BatchRows
from ssd.integrations.vllm.runner_v2 import (
    AsyncV2RunnerPatch,
    CoupledVerification,
    SettledOutput,
    SilentSpeculator,
    V2RunnerPatch,
)
from ssd.integrations.vllm.settings import Settings
from tests.vllm.records import new, scheduled

CPU = torch.device("cpu")


def runner(**changes: Any) -> SimpleNamespace:
    states = SimpleNamespace(draft_tokens=torch.zeros(4, 3, dtype=torch.int64), req_id_to_index={"a": 2})
    usual = {
        "req_states": states,
        "num_speculative_steps": 3,
        "max_num_reqs": 4,
        "device": CPU,
        "speculator": None,
        "rejection_sampler": None,
    }
    return SimpleNamespace(**{**usual, **changes})


def test_drafted_tokens_are_written_where_v2_reads_them() -> None:
    """A new request with one token left is padded by vLLM, and has no row yet."""
    found = runner()
    patch = V2RunnerPatch(found, BatchRows("salt"), Settings(coupled=False))
    patch.prepare_step(scheduled(new("b"), drafted={"a": [7, 8], "b": [-1, -1, -1]}))
    assert found.req_states.draft_tokens.tolist() == [[0, 0, 0], [0, 0, 0], [7, 8, 0], [0, 0, 0]]


def test_every_request_has_a_seed() -> None:
    rows = BatchRows("salt")
    record = scheduled(new("a"))
    rows.follow(record)
    prepared = V2RunnerPatch(runner(), rows, Settings()).prepare_step(record)
    seed = prepared.scheduled_new_reqs[0].sampling_params.seed
    assert seed % 2**64 == rows.seed_of("a")
    assert -(2**63) <= seed < 2**63
    assert record.scheduled_new_reqs[0].sampling_params.seed is None


def test_a_stage_without_a_speculator_runs() -> None:
    patch = AsyncV2RunnerPatch(runner(), BatchRows("salt"), Settings(coupled=False), lambda work: None)
    patch.device_ready()
    patch.prepare_step(scheduled(drafted={"a": [-1, -1, -1]}))


def test_vllm_may_write_into_a_proposal() -> None:
    speculator, batch = SilentSpeculator(runner()), SimpleNamespace(num_reqs=2)
    speculator.propose(batch)[:] = -1
    assert not speculator.propose(batch).any()


class Output(AsyncModelRunnerOutput):  # type: ignore[misc]
    def get_output(self) -> str:
        return "tokens"

    def get_kv_connector_output(self) -> str:
        return "blocks"


def test_who_reads_an_output_settles_it() -> None:
    settled = list[str]()
    output = SettledOutput(Output(), settled.append)
    assert not settled
    assert output.get_output() == "tokens"
    assert settled == ["tokens"]
    # An abstract method of vLLM's class from 0.33 on.
    assert output.get_kv_connector_output() == "blocks"
    assert "get_kv_connector_output" in vars(SettledOutput)


def test_a_sequences_last_row_is_not_compared_with_its_neighbour() -> None:
    """Each row's input is the token drafted for the row before: of the same sequence only."""
    tokens, inputs = torch.tensor([5, 6, 7, 7, 8, 9]), torch.tensor([4, 5, 6, 7, 7, 1])
    stock: Any = SimpleNamespace(
        sampler=SimpleNamespace(sample=lambda *_, **__: (tokens, tokens)), num_speculative_steps=2
    )
    unread: Any = None
    starts = torch.tensor([0, 3, 6], dtype=torch.int32)
    _, sampled, num_sampled = CoupledVerification.like(stock)._verify(
        tokens, None, inputs, tokens, starts, unread, unread, unread, unread, unread, inputs
    )
    assert num_sampled.tolist() == [3, 2]
    assert sampled.tolist() == [[5, 6, 7], [7, 8, -1]]


def test_a_rejection_sampler_of_a_model_is_not_replaced() -> None:
    found = runner(rejection_sampler=SimpleNamespace())
    with pytest.raises(ValueError, match="rejection sampler of its own"):
        V2RunnerPatch(found, BatchRows("salt"), Settings()).model_loaded()


def test_frames_are_read_until_the_tokens_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    patch, events = V2RunnerPatch(runner(), BatchRows("salt"), Settings()), list[str]()
    answers = iter([False, False, False, True])
    monkeypatch.setattr(runner_v2, "end_of_work", lambda device: answers.__next__)
    found = patch.finish_step(
        Output(), lambda output, _counts: events.append(output), lambda: events.append("frames")
    )
    assert found == "tokens"
    assert events == ["frames", "frames", "frames", "tokens"]
