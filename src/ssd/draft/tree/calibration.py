"""How often the target takes what the draft expects: its probabilities, corrected by what happens.

The model's own probability for a guess says which guesses are surer than others, not how often the target
agrees. Each decided token tells of every guess that stood in its place whether it was taken; where little
has been seen the model is believed.

Guesses are counted by tenant (tenants.py), kind (greedy, coupled, drawn), rank and what the model said. All
that an outcome teaches is counted at once; the counts of a cell that has seen much are then halved, together.
"""

from ssd.draft.tree.arrays import Array, Arrays
from ssd.draft.tree.tables import BINS, RANKS, Constants

TRUST = 6.0
"""The model's own word counts as so many observations."""
MEMORY = 400.0
"""Observations in a cell beyond which the oldest fade."""
LEAST = 1e-4
"""No chance is held to be less."""


def calibrated(xp: Arrays, known: Constants, counts: Array, raws: Array, part: Array) -> Array:
    """Log-probabilities [W, C] of the children of rows, from what the model said of them.

    `part` [W]: which counts a row uses (`Tables.calibration`).
    """
    said = xp.exact(raws)
    cells = _cells(xp, known, said, part[:, None])
    rates = (counts[1][cells] + TRUST * xp.exp(said)) / (counts[0][cells] + TRUST)
    return xp.real(xp.at_most(xp.log(xp.at_least(rates, LEAST)), 0.0))


def learn(
    xp: Arrays, known: Constants, counts: Array, raws: Array, part: Array, observed: tuple[Array, Array]
) -> None:
    """Counts guesses [S, K, C]: which of them were judged, and which came."""
    is_judged, came = observed
    cells = _cells(xp, known, xp.exact(raws), part[:, None, None]).reshape(-1)
    xp.add_at(counts[0], cells, xp.exact(is_judged).reshape(-1))
    xp.add_at(counts[1], cells, xp.exact(is_judged & came).reshape(-1))
    counts *= xp.where(counts[:1] > MEMORY, known.half, known.one)


def _cells(xp: Arrays, known: Constants, said: Array, part: Array) -> Array:
    return part * (RANKS * BINS) + known.first_cells + xp.searchsorted(known.edges, said)
