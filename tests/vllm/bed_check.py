"""Run inside the stand-in of tests/vllm/bed: what it replaces in vLLM's sampler, beside vLLM's own kernels.

`python -m tests.vllm.bed_check` prints one line of JSON; `test_bed.py` runs it and says what has to be equal.
"""

import importlib.util
import json
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from vllm.v1.worker.gpu.sample import gumbel, logprob, penalties

from tests.vllm.bed.sampling import NumpySampling

NUM_ROWS, NUM_REQUESTS, VOCABULARY = 24, 6, 3000
"""The vocabulary is no multiple of a block."""


def untouched(module: ModuleType) -> ModuleType:
    """The same module under another name, which the stand-in does not change."""
    assert module.__file__ is not None
    spec = importlib.util.spec_from_file_location(
        f"untouched_{module.__name__.rpartition('.')[2]}", module.__file__
    )
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def drawn() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Logits, requests of rows, temperatures, seeds and positions."""
    made = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn(NUM_ROWS, VOCABULARY, generator=made)
    logits[:, ::7] = -torch.inf
    requests = torch.randint(NUM_REQUESTS, (NUM_ROWS,), generator=made, dtype=torch.int32)
    temperatures = torch.tensor([0.0, 0.7, 1.0, 3.5, 0.01, 0.7])
    seeds = torch.tensor([7, -20, 2**63 - 1, -(2**63), 0, 2**32 + 5])
    positions = torch.randint(2**20, (NUM_ROWS,), generator=made)
    return logits, requests, temperatures, seeds, positions


def scores_by_kernel(stock: Any, rows: tuple[Tensor, ...]) -> Tensor:
    logits, requests, temperatures, seeds, positions = rows
    tokens, scores = torch.empty(NUM_ROWS, 1, dtype=torch.int64), torch.empty(NUM_ROWS, 1)
    logs = (None, 0, 0, None, None, 0)
    usual = (requests, seeds, positions, temperatures, VOCABULARY)
    stock._gumbel_sample_kernel[(NUM_ROWS, 1)](
        *(tokens, 1, scores, 1, *logs, logits, logits.stride(0), *usual),
        BLOCK_SIZE=4096,
        IS_DRAFTING=False,
        APPLY_TEMPERATURE=False,
        USE_FP64=False,
        PER_TOKEN_COL=False,
    )
    return scores[:, 0]


def check_sampling() -> dict[str, bool]:
    stock, rows = untouched(gumbel), drawn()
    found = {}
    for name, is_applied in {"tokens": False, "tokens, with temperatures": True}.items():
        by_kernel = stock.gumbel_sample(*rows, apply_temperature=is_applied, is_drafting=False)
        here = gumbel.gumbel_sample(*rows, apply_temperature=is_applied, is_drafting=False)
        found[name] = here.dtype == by_kernel.dtype and torch.equal(here, by_kernel)
    scores, _tokens = NumpySampling(gumbel).best(*rows, apply_temperature=False)
    found["scores"] = torch.equal(torch.from_numpy(scores), scores_by_kernel(stock, rows))
    logits, requests, temperatures, *_ = rows
    one, other = logits.clone(), logits.clone()
    stock.apply_temperature(one, requests, temperatures)
    gumbel.apply_temperature(other, requests, temperatures)
    return {**found, "temperatures": torch.equal(one, other) and not torch.equal(one, logits)}


def check_penalties() -> bool:
    made = torch.Generator().manual_seed(2)
    logits, requests, *_ = drawn()
    logits = torch.cat([logits] * 3, dim=1)  # More than one block of 8,192.
    words = (
        torch.randint(VOCABULARY, (NUM_ROWS,), generator=made, dtype=torch.int32),
        torch.arange(NUM_ROWS, dtype=torch.int32) % 4,
        *(1.0 + torch.rand(NUM_REQUESTS, generator=made) for _ in range(3)),
        torch.randint(2**31 - 1, (NUM_REQUESTS, 282), generator=made, dtype=torch.int32),
        torch.randint(3, (NUM_REQUESTS, logits.shape[1]), generator=made, dtype=torch.int32),
    )
    one, other = logits.clone(), logits.clone()
    untouched(penalties).apply_penalties(one, requests, *words)
    penalties.apply_penalties(other, requests, *words)
    return torch.equal(one, other) and not torch.equal(one, logits)


def largest_difference_of_logprobs() -> float:
    """Their sums are added up in another order."""
    logits, *_ = drawn()
    tokens = 7 * torch.arange(NUM_ROWS) + 1  # None of them has the logit -inf.
    one, other = (each.compute_topk_scores(logits, 3, tokens) for each in (untouched(logprob), logprob))
    assert torch.equal(one.logprob_token_ids, other.logprob_token_ids)
    assert torch.equal(one.selected_token_ranks, other.selected_token_ranks)
    finite = torch.isfinite(one.logprobs)
    return float((one.logprobs - other.logprobs)[finite].abs().max())


if __name__ == "__main__":
    print(
        json.dumps(
            {
                **check_sampling(),
                "penalties": check_penalties(),
                "logprobs": largest_difference_of_logprobs(),
            }
        )
    )
