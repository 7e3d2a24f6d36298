"""Children by our kernels: one read of the logits, and noise for every token. For a GPU; never run on one.

`FixedChildren` is the torch form, up to what it leaves out: noise for all but the largest logits, and the
shares of what it leaves out.
"""

import torch
from torch import Tensor

from ssd.draft.forest.children import SAMPLED_CANDIDATES, FixedChildren, Needs, Told, truncation_of
from ssd.draft.forest.grower import Children
from ssd.draft.forest.tables import Rows, Tables
from ssd.sampling.draws import Draws
from ssd.sampling.select import largest_of_rows
from ssd.sampling.truncation import candidate_floors
from ssd.sampling.whole import scaled


class FusedChildren:
    def __init__(
        self, count: int, head_tokens: Tensor | None, device: torch.device, *, truncates: bool
    ) -> None:
        self._count, self._head_tokens, self._truncates = count, head_tokens, truncates
        self._zero = torch.zeros((), device=device)

    def of(self, logits: Tensor, tables: Tables, rows: Rows) -> Told:
        from ssd.kernels.vocabulary import children_of

        sequence = rows.sequence
        temperatures = tables.temperature[sequence]
        heats = torch.where(tables.kind[sequence] == 0, self._zero, temperatures)
        draws = Draws(tables.seed[sequence], rows.position + 1, heats)
        if not self._truncates:
            return children_of(logits, draws, None, self._count, self._head_tokens)
        scores = scaled(logits, temperatures)
        _, largest = largest_of_rows(scores, min(SAMPLED_CANDIDATES, scores.shape[1]))
        # A floor below the candidates is none: it would take a sort of the whole vocabulary to find it.
        floors = candidate_floors(largest, scores, truncation_of(tables, sequence))
        return children_of(logits, draws, floors, self._count, self._head_tokens)


def children_on(device: torch.device, count: int, head_tokens: Tensor | None, *, truncates: bool) -> Children:
    """A fixed list of operations for everybody: what a greedy sequence needs not changes nothing for it."""
    if device.type != "cpu":
        # Not before it is wanted: Triton takes long to import, and is of use on a GPU only.
        from ssd.kernels.trust import may_run

        if may_run("children", device):
            return FusedChildren(count, head_tokens, device, truncates=truncates)
    return FixedChildren(count, Needs(samples=True, truncates=truncates), head_tokens, device=device)
