"""Calibrates the draft's log-probabilities by how often the target accepted similar guesses.

The model's probabilities rank guesses, but do not say how often the target agrees. Each decided token shows
for every guess at its position whether it was right. Cells with few observations follow the model.

Guesses are counted in cells: by tenant (server/tenants.py), kind (greedy, coupled, drawn), rank, and the
model's log-probability. All guesses of an outcome are counted at once; then full cells are halved.
"""

from ssd.draft.tree.arrays import Array, Arrays
from ssd.draft.tree.tables import BINS, RANKS, Constants

TRUST = 6.0
"""The model's own probability counts as this many observations."""
MEMORY = 400.0
"""A cell with more observations than this is halved, so that old ones fade."""
LEAST = 1e-4
"""Smallest calibrated probability: the logarithm stays finite."""


def calibrated(xp: Arrays, known: Constants, counts: Array, raws: Array, part: Array) -> Array:
    """Calibrated log-probabilities [W, C] of rows' children, from the model's (`raws`).

    `part` [W]: the part of the counts that a row uses (`Tables.calibration`).
    """
    raw = xp.exact(raws)
    cells = _cells(xp, known, raw, part[:, None])
    rates = (counts[1][cells] + TRUST * xp.exp(raw)) / (counts[0][cells] + TRUST)
    return xp.real(xp.at_most(xp.log(xp.at_least(rates, LEAST)), 0.0))


def learn(
    xp: Arrays, known: Constants, counts: Array, raws: Array, part: Array, observed: tuple[Array, Array]
) -> None:
    """Counts guesses [S, K, C]. `observed`: which guesses were decided, and which were right."""
    is_judged, came = observed
    cells = _cells(xp, known, xp.exact(raws), part[:, None, None]).reshape(-1)
    xp.add_at(counts[0], cells, xp.exact(is_judged).reshape(-1))
    xp.add_at(counts[1], cells, xp.exact(is_judged & came).reshape(-1))
    counts *= xp.where(counts[:1] > MEMORY, known.half, known.one)


def _cells(xp: Arrays, known: Constants, raw: Array, part: Array) -> Array:
    return part * (RANKS * BINS) + known.first_cells + xp.searchsorted(known.edges, raw)
