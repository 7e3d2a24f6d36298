"""One figure for several data sets: the mean of their medians, with an interval."""

import statistics
from collections.abc import Sequence
from typing import Any

from ssd.bench.statistics import Estimate, need_scipy

_RESAMPLES, _CONFIDENCE = 5000, 0.95


def mean_of_medians(samples: Sequence[Sequence[float]]) -> Estimate:
    """Each group counts the same, whatever its size; resampled within groups."""
    value = statistics.fmean(statistics.median(each) for each in samples)
    count = sum(map(len, samples))
    if min(map(len, samples)) < 2:
        return Estimate(value=value, count=count)
    need_scipy()
    import numpy
    from scipy.stats import bootstrap

    def statistic(*groups: Any, axis: int = -1) -> Any:
        return numpy.mean([numpy.median(each, axis=axis) for each in groups], axis=0)

    interval = bootstrap(
        tuple(list(each) for each in samples),
        statistic,
        n_resamples=_RESAMPLES,
        confidence_level=_CONFIDENCE,
        method="percentile",
        vectorized=True,
        rng=numpy.random.default_rng(0),
    ).confidence_interval
    return Estimate(value=value, low=float(interval.low), high=float(interval.high), count=count)
