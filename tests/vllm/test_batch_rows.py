"""Seeds and positions of batch rows, and that a row's token depends on nothing else."""

from types import SimpleNamespace

import numpy as np
import torch

from ssd.integrations.vllm.batch_rows import BatchRows
from ssd.sampling import Draws, History, SamplingParams, SamplingRow, decide_tokens, sample, seed_of
from tests.vllm.records import new, params, scheduled


def batch(ids: list[str], lengths: list[int]) -> SimpleNamespace:
    # vLLM's array has room for more rows than there are.
    return SimpleNamespace(req_ids=ids, num_tokens_no_spec=np.array([*lengths, 99, 99], np.int32))


def rows_of(**seeds: int | None) -> BatchRows:
    rows = BatchRows("salt")
    rows.follow(scheduled(*(new(name, sampling_params=params(seed=seed)) for name, seed in seeds.items())))
    return rows


def test_a_row_without_drafted_tokens_decides_its_next_position() -> None:
    owners, positions, seeds = rows_of(a=7, b=2**64 - 1).decisions(batch(["b", "a"], [5, 9]))
    assert owners.tolist() == [0, 1]
    assert positions.tolist() == [5, 9]
    assert seeds.tolist() == [-1, 7]


def test_drafted_rows_decide_one_position_after_the_other() -> None:
    columns = rows_of(a=1, b=2, c=3).decisions(batch(["a", "b", "c"], [10, 20, 30]), [2, 0, 1])
    assert columns.tolist() == [
        [0, 0, 0, 1, 2, 2],
        [10, 11, 12, 20, 30, 31],
        [1, 1, 1, 2, 3, 3],
    ]


def test_a_missing_seed_comes_from_id_and_salt_alike_on_every_rank() -> None:
    ranks = [rows_of(a=None, b=None).decisions(batch(["a", "b"], [1, 1]))[2] for _ in range(2)]
    assert ranks[0].tolist() == ranks[1].tolist()
    assert rows_of(a=-3).seed_of("a") == 2**64 - 3, "a negative seed is its bits"
    assert ranks[0].view(np.uint64).tolist() == [seed_of("a", "salt"), seed_of("b", "salt")]


def test_an_id_that_comes_again_draws_with_its_new_seed() -> None:
    rows = rows_of(a=1)
    here = batch(["a"], [4])
    assert rows.decisions(here)[2].tolist() == [1]
    rows.follow(scheduled(new("a", sampling_params=params(seed=5)), finished=["a"]))
    assert rows.decisions(here)[2].tolist() == [5]
    rows.follow(scheduled(new("a", sampling_params=params(seed=6))))
    assert rows.decisions(here)[2].tolist() == [6]


def test_rows_that_move_keep_their_seeds() -> None:
    rows = rows_of(a=1, b=2, c=3)
    assert rows.decisions(batch(["a", "b", "c"], [4, 4, 4]))[2].tolist() == [1, 2, 3]
    rows.follow(scheduled(finished=["a"]))
    assert rows.decisions(batch(["c", "b"], [4, 4]))[2].tolist() == [3, 2]


def test_a_request_that_only_pools_has_no_seed_and_does_no_harm() -> None:
    rows = BatchRows("salt")
    rows.follow(scheduled(new("p", sampling_params=None, pooling_params=object())))
    assert rows.decisions(batch(["p"], [3]))[2].tolist() == [0]


def test_what_is_decided_is_what_our_own_engine_decides() -> None:
    """Same logits, seed and position: the same token in vLLM and in our engine, drafted or not."""
    torch.manual_seed(0)
    rows, here = rows_of(a=11, b=12), batch(["a", "b"], [6, 40])
    columns = torch.from_numpy(rows.decisions(here, [3, 1]))
    logits = torch.randn(6, 3000) * 3
    owners, positions, seeds = columns
    temperatures = torch.tensor([0.7, 1.3])[owners]
    decided = decide_tokens(logits, Draws(seeds, positions, temperatures)).tolist()
    ours = [
        SamplingRow(
            params=SamplingParams(temperature=(0.7, 1.3)[owner]),
            seed=(11, 12)[owner],
            position=int(position),
            prompt=(),
            output=History([]),
        )
        for owner, position in zip(owners.tolist(), positions.tolist(), strict=True)
    ]
    assert decided == [each.token for each in sample(logits, ours)]
    # The other way round: one row at a time, as if nothing had been drafted.
    for place, (owner, ahead) in enumerate([(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]):
        alone = batch([("a", "b")[owner]], [(6, 40)[owner] + ahead])
        _, position, seed = torch.from_numpy(rows.decisions(alone))
        one = decide_tokens(logits[place : place + 1], Draws(seed, position, temperatures[place : place + 1]))
        assert one.tolist() == [decided[place]]
