"""A draft's children by our kernels are those of the torch form, for rows of all kinds at once."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ssd.draft.tree import gpu as fused_children
from ssd.draft.tree.arrays import Arrays, NumpyArrays, TorchArrays
from ssd.draft.tree.children import GREEDY_CANDIDATES, FixedChildren, LooseChildren, SamplingNeeds
from ssd.draft.tree.gpu import FusedChildren, children_on
from ssd.draft.tree.tables import Shape, Tables
from ssd.sampling import gumbel_noise_at
from ssd.sampling.murmur import murmur_noise

CPU = torch.device("cpu")
SEQUENCES = torch.tensor([1, 1, 2, 3, 3, 0, 4, 4])


def tables_of() -> Tables:
    """A greedy sequence, a warm one, a truncated one, and one of vLLM's V2 runner; scratch is row 0."""
    tables = Tables.of(TorchArrays(), Shape(4, 4))
    tables.kind[2:], tables.temperature[2], tables.temperature[3] = 1, 0.8, 1.3
    tables.seed[2:] = torch.tensor([77, -5, 9])
    tables.is_murmur[4] = True
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


def test_kernels_on_a_gpu_where_they_can_be_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(children_on(CPU, 3, None, truncates=True), FixedChildren)
    gpu: Any = SimpleNamespace(type="cuda")
    monkeypatch.setattr(fused_children, "FixedChildren", lambda *given, **how: "fixed")
    monkeypatch.setattr(fused_children, "FusedChildren", lambda *given, **how: "fused")
    for verdict, kind in ((True, "fused"), (False, "fixed")):
        monkeypatch.setattr(fused_children, "can_launch", lambda device, it=verdict: it)
        assert str(children_on(gpu, 3, None, truncates=False)) == kind


@pytest.mark.parametrize("xp", [NumpyArrays(), TorchArrays()], ids=["arrays", "tensors"])
def test_a_sequence_of_vllm_is_ranked_by_the_noise_of_vllm(xp: Arrays) -> None:
    """Beside one with our noise, and at the position of the token that follows the row's."""
    tables, seeds, position = Tables.of(xp, Shape(2, 4)), [11, 12], 30
    tables.kind[1:], tables.temperature[1:], tables.is_murmur[2] = 1, 1.5, True
    tables.seed[1], tables.seed[2] = seeds
    logits = torch.randn(2, 64, generator=torch.Generator().manual_seed(5))
    rows: Any = SimpleNamespace(
        sequence=np.array([1, 2]), position=np.array([position, position]), attaches=np.array([True, True])
    )
    if xp.is_fixed:
        rows = SimpleNamespace(**{name: torch.from_numpy(each) for name, each in vars(rows).items()})
    chooser = FixedChildren(3, SamplingNeeds(samples=True)) if xp.is_fixed else LooseChildren(3)
    tokens, _raws = chooser.of(logits, tables, rows)
    ids = torch.arange(64)
    ours = gumbel_noise_at(seeds[0], position + 1, ids)
    theirs = murmur_noise(torch.tensor(seeds[1]), torch.tensor(position + 1), ids)
    for row, noise in enumerate((ours, theirs)):
        expected = (logits[row] / 1.5 + noise).topk(3).indices
        assert torch.as_tensor(tokens[row]).tolist() == expected.tolist()
