"""A draft's children by our kernels are those of the torch form, for rows of all kinds at once."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssd.draft.tree import gpu as fused_children
from ssd.draft.tree.arrays import TorchArrays
from ssd.draft.tree.children import GREEDY_CANDIDATES, FixedChildren, SamplingNeeds
from ssd.draft.tree.gpu import FusedChildren, children_on
from ssd.draft.tree.tables import Shape, Tables
from ssd.kernels import trust

CPU = torch.device("cpu")
SEQUENCES = torch.tensor([1, 1, 2, 3, 3, 0])


def tables_of() -> Tables:
    """A greedy sequence, a warm one, and a truncated one; scratch is row 0."""
    tables = Tables.of(TorchArrays(), Shape(3, 4))
    tables.kind[2:], tables.temperature[2], tables.temperature[3] = 1, 0.8, 1.3
    tables.seed[2:] = torch.tensor([77, -5])
    tables.top_k[3], tables.top_p[3] = 5, 0.9
    return tables


@pytest.mark.parametrize("head", [False, True])
def test_they_are_those_of_the_torch_form(head: bool) -> None:
    """With no more tokens than the torch form gives noise to, and counts for a greedy row's shares."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(len(SEQUENCES), GREEDY_CANDIDATES, generator=generator) * 3
    rows: Any = SimpleNamespace(sequence=SEQUENCES, position=torch.arange(len(SEQUENCES)) + 40)
    head_tokens = torch.arange(GREEDY_CANDIDATES) * 3 + 1 if head else None
    fixed = FixedChildren(3, SamplingNeeds(samples=True, truncates=True), head_tokens)
    tokens, raws = FusedChildren(3, head_tokens, CPU, truncates=True).of(logits, tables_of(), rows)
    wanted, shares = fixed.of(logits, tables_of(), rows)
    plain, told = FusedChildren(3, head_tokens, CPU, truncates=False).of(logits, tables_of(), rows)
    is_cut = tables_of().top_k[SEQUENCES] > 0
    assert torch.equal(plain[~is_cut], tokens[~is_cut])
    assert not torch.equal(told[is_cut], raws[is_cut])
    is_child = shares > -torch.inf
    assert torch.equal(tokens[is_child], wanted[is_child])
    torch.testing.assert_close(raws, shares, rtol=1e-5, atol=1e-5)


def test_kernels_on_a_gpu_where_they_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(children_on(CPU, 3, None, truncates=True), FixedChildren)
    gpu: Any = SimpleNamespace(type="cuda")
    monkeypatch.setattr(fused_children, "FixedChildren", lambda *given, **how: "fixed")
    monkeypatch.setattr(fused_children, "FusedChildren", lambda *given, **how: "fused")
    for verdict, kind in ((True, "fused"), (False, "fixed")):
        monkeypatch.setattr(trust, "may_run", lambda kernel, device, it=verdict: it and kernel == "children")
        assert str(children_on(gpu, 3, None, truncates=False)) == kind
