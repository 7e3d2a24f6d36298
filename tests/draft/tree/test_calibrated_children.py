"""Children of the forest: what truncation keeps among the largest entries, and how calibration fades."""

import numpy as np
import pytest
import torch

from ssd.draft.tree.apply import calibrated, learn
from ssd.draft.tree.arrays import Arrays, NumpyArrays, TorchArrays
from ssd.draft.tree.tables import BINS, KINDS, RANKS, Constants, Shape
from ssd.sampling import SamplingParams
from ssd.sampling.draws import Truncation
from ssd.sampling.truncation import candidate_floors, whole_floors
from tests.draft.tree.oracle.calibration import Calibration, Observation

CUTS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=1.0, top_p=0.05),
    SamplingParams(temperature=1.0, top_k=7),
    SamplingParams(temperature=1.0, top_k=40, top_p=0.7),
    SamplingParams(temperature=1.0, min_p=0.1),
    SamplingParams(temperature=1.0, min_p=0.02, top_k=30, top_p=0.95),
)


@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_the_largest_are_kept_as_if_the_whole_row_were_sorted(spread: float) -> None:
    draw = torch.Generator().manual_seed(1)
    scores = torch.randn(len(CUTS), 3000, generator=draw) * spread
    largest = scores.topk(64, dim=1).values
    truncation = Truncation.of(CUTS)
    assert truncation is not None
    kept = largest >= candidate_floors(largest, scores, truncation).unsqueeze(1)
    assert torch.equal(kept, largest >= whole_floors(scores, truncation).unsqueeze(1))
    assert kept.all(1).any()
    assert not kept.all()


def test_a_row_that_is_forbidden_throughout_has_no_floor() -> None:
    truncation = Truncation.of([SamplingParams(temperature=1.0, top_p=0.5)])
    assert truncation is not None
    scores = torch.full((1, 100), -torch.inf)
    assert candidate_floors(scores[:, :8], scores, truncation).item() == -torch.inf


@pytest.mark.parametrize("xp", [NumpyArrays(), TorchArrays()], ids=["arrays", "tensors"])
def test_what_is_learned_one_by_one_fades_as_it_does_today(xp: Arrays) -> None:
    known, today = Constants.of(xp, Shape(1, 4)), Calibration()
    counts = xp.exacts(2, KINDS * RANKS * BINS)
    draw = np.random.default_rng(0)
    raws = np.array([-0.2, -1.3, -3.5, -6.0], np.float32)
    kind = xp.integers(1, fill=1)
    said = xp.reals(1, 1, 4)
    xp.load(said, raws.reshape(1, 1, 4))
    for _ in range(1000):
        taken = int(draw.integers(0, 5))
        came = xp.flags(1, 1, 4)
        if taken < 4:
            came[0, 0, taken] = True
        learn(xp, known, counts, said, kind, (~xp.flags(1, 1, 4), came))
        today.learn(Observation(raws, taken if taken < 4 else None))
    found = xp.to_host(calibrated(xp, known, counts, said[0], kind))
    np.testing.assert_allclose(found[0], today.logprobs(raws), atol=1e-6)
