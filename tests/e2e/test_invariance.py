"""Deterministic mode: a request's tokens depend on nothing but the request.

The full size (200 requests of SmolLM2) is `python -m campaigns.e2e.invariance`; CI runs the same
code with fewer requests of small random models and of SmolLM2's first layers, `-m slow` with more.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from campaigns.e2e.invariance import CIRCUMSTANCES, compare, load, make_requests, run
from ssd.attention.inputs import PlainInput
from ssd.runtime.loading import LoadedModel
from ssd.runtime.runner import forward
from tests.tiny import write_checkpoint


def assert_invariant(loaded: LoadedModel, num_requests: int, max_tokens: int) -> None:
    requests = make_requests(loaded, num_requests, max_tokens)
    baseline = run(loaded, requests, CIRCUMSTANCES[0], deterministic=True)
    preempted = cached = 0
    for how in CIRCUMSTANCES[1:]:
        outputs = run(loaded, requests, how, deterministic=True)
        assert not compare(loaded, requests, baseline, outputs, how.name)
        scores = [[p.logprob for p in o.outputs[0].logprobs or ()] for o in outputs]
        assert scores == [[p.logprob for p in o.outputs[0].logprobs or ()] for o in baseline]
        preempted += sum(output.num_preemptions for output in outputs)
        cached += sum(output.num_cached_tokens for output in outputs)
    # Otherwise the circumstances were not what they are called.
    assert preempted > 0
    assert cached > 0


SIZES = [12, pytest.param(200, marks=pytest.mark.slow)]


@pytest.mark.parametrize("num_requests", SIZES)
@pytest.mark.parametrize(
    ("kind", "dtype"), [("medium", "bfloat16"), ("medium", "float32"), ("qwen3", "bfloat16")]
)
def test_many_requests_of_a_random_model(kind: str, dtype: str, num_requests: int, tmp_path: Path) -> None:
    loaded = load(str(write_checkpoint(kind, tmp_path)), deterministic=True, dtype=dtype)
    assert_invariant(loaded, num_requests, max_tokens=10)


@pytest.mark.parametrize(("num_threads", "dtype"), [(2, "bfloat16"), (3, "float32")])
def test_several_threads(num_threads: int, dtype: str, tmp_path: Path) -> None:
    """Threads share out rows, heads and elements, three of them unevenly; none of that may show."""
    torch.set_num_threads(num_threads)
    try:
        loaded = load(str(write_checkpoint("medium", tmp_path)), deterministic=True, dtype=dtype)
        assert_invariant(loaded, num_requests=12, max_tokens=10)
        assert_rows_alone_equal_rows_together(loaded)
    finally:
        torch.set_num_threads(1)


def assert_rows_alone_equal_rows_together(loaded: LoadedModel) -> None:
    """Logits, not tokens: a difference in the last bit shows."""
    rows = [PlainInput([3 + i, 5, 7 * i % 200], 0, [i], 3, generated=bool(i % 2)) for i in range(40)]
    together = forward(loaded.runner, rows)
    alone = torch.cat([forward(loaded.runner, [row]) for row in rows])
    assert torch.equal(together, alone)


@pytest.mark.models
@pytest.mark.parametrize(
    ("model", "num_requests"),
    [("shallow_smollm2", 12), pytest.param("smollm2", 24, marks=pytest.mark.slow)],
)
def test_smollm2(model: str, num_requests: int, request: pytest.FixtureRequest) -> None:
    """In the precision that this machine takes for it."""
    folder: Any = request.getfixturevalue(model)
    assert_invariant(load(str(folder), deterministic=True), num_requests, max_tokens=8)


def test_the_comparison_can_fail(tmp_path: Path) -> None:
    """Outside deterministic mode the same comparison does find ties that rounding decides.

    In bfloat16, where ties are common on every CPU: in float32 none may come up for thousands of tokens.
    """
    loaded = load(str(write_checkpoint("medium", tmp_path)), deterministic=False, dtype="bfloat16")
    requests = make_requests(loaded, 60, 10)
    baseline = run(loaded, requests, CIRCUMSTANCES[0], deterministic=False)
    found = []
    for how in CIRCUMSTANCES[1:4]:
        outputs = run(loaded, requests, how, deterministic=False)
        found += compare(loaded, requests, baseline, outputs, how.name)
    assert found
    # Ties only: bfloat16 logits near 20 are 0.125 apart.
    assert max(each.gap for each in found) < 0.6
