"""What a speculation shows the controller."""

import numpy as np

from ssd.decoding.parallel import _chances, _speculation
from ssd.draft.mirror import Path
from ssd.sampling.ratio import DraftDistribution, Proposal


def proposals(*tokens: int) -> tuple[Proposal, ...]:
    q = DraftDistribution(np.array([1, 2, 3], np.int32), np.array([0.5, 0.3, 0.2], np.float32))
    return tuple(Proposal(token, q) for token in tokens)


def test_a_guess_is_cut_by_its_own_chance() -> None:
    assert tuple(_chances(Path((1, 2, 3), (0.9, 0.4, 0.1)))) == (0.9, 0.4, 0.1)


def test_a_drawn_token_is_cut_by_its_parents_chance() -> None:
    """Whether it is checked must not depend on which token it is."""
    assert tuple(_chances(Path((1, 2, 3), (0.9, 0.4, 0.1), proposals(1, 2, 3)))) == (1.0, 0.9, 0.4)


def test_tokens_and_their_distributions_are_cut_alike() -> None:
    speculation = _speculation(Path((1, 2, 3), (0.9, 0.4, 0.1), proposals(1, 2, 3)), 2)
    assert speculation.tokens == (1, 2)
    assert [each.token for each in speculation.proposals or ()] == [1, 2]
