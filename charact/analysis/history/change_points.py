"""Change points of a series: where its level changes by more than its noise.

`benchmarks/change_points.py` measures how often noise alone gives a change point, and how often a step is found.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from charact.core.errors import UserError
from charact.core.statistics import consecutive_correlation

MIN_VALUES = 10
"""Minimum: with fewer, chance gives a perfect step more often than `FALSE_ALARM_FRAC`."""
FALSE_ALARM_FRAC = 0.01
"""Share of series of independent noise in which a change point is found."""
MIN_SEGMENT = 3
"""Minimum number of values between two change points: a single slow run is an outlier, not a new level."""
_CRITICAL = {10: 21.3, 12: 20.4, 14: 19.2, 16: 18.2, 20: 15.6, 25: 14.6, 30: 14.2, 40: 13.4, 60: 13.1, 500: 13.6}
"""Largest F ratio of ranks that the best split of a series reaches in 1 - FALSE_ALARM_FRAC of random orders, by the
number of values. Ranks make it the same for every distribution of the noise."""

Values = NDArray[np.float64]


def change_points(values: Sequence[float]) -> list[int]:
    """Return the positions at which a new level begins in values in order of time, by PELT on their ranks.

    A change point is accepted if it reduces the squared deviations of the ranks by more than a penalty, which random
    orders exceed with a probability of `FALSE_ALARM_FRAC`. The penalty grows with the correlation of consecutive
    values around their levels, since correlated noise wanders. The values between two change points are searched in
    the same way. Fewer than `MIN_VALUES` have no change points.

    *Error*: noise with a correlation of consecutive values of 0.3 gives a change point in 2 to 4 % of the series, of
    0.5 in 3 to 6 %, of 0.7 in 6 to 10 %. A new level of a few runs at the end is not found: at 30 values it needs 4.

    *Source*: R. Killick, P. Fearnhead, I. A. Eckley, Optimal detection of changepoints with a linear computational
    cost (2012); the library `ruptures`.
    """
    changes = _of_whole(values)
    if not changes:
        return []
    edges = [0, *changes, len(values)]
    inside = [begin + position for begin, end in pairwise(edges) for position in change_points(values[begin:end])]
    return sorted([*changes, *inside])


def levels(values: Sequence[float], changes: Sequence[int]) -> list[float]:
    """Return the level at each value: the median of the values between two change points."""
    edges = [0, *changes, len(values)]
    return [float(np.median(values[begin:end])) for begin, end in pairwise(edges) for _ in range(begin, end)]


def _of_whole(values: Sequence[float]) -> list[int]:
    """Return the change points that explain enough of the deviations of all values."""
    ranks: Values = np.asarray(pd.Series(values, dtype="float64").rank(), dtype=np.float64)
    deviations = float(((ranks - ranks.mean()) ** 2).sum()) if len(ranks) else 0.0
    if len(ranks) < MIN_VALUES or deviations == 0:
        return []
    changes = _segmented(ranks, deviations * _penalty(len(ranks)))
    if not changes:
        return []
    segments = np.split(ranks, changes)
    residuals = np.concatenate([segment - segment.mean() for segment in segments])
    correlation = consecutive_correlation(residuals.tolist(), len(segments))
    return _segmented(ranks, deviations * _penalty(len(ranks), (1 + correlation) / (1 - correlation)))


def _penalty(num_values: int, factor: float = 1.0) -> float:
    """Return the share of the squared deviations that a change point must explain.

    Correlation raises the critical F ratio by `factor`.
    """
    sizes = [math.log(size) for size in _CRITICAL]
    critical = factor * float(np.interp(math.log(num_values), sizes, list(_CRITICAL.values())))
    return critical / (critical + num_values - 2)


def _segmented(ranks: Values, penalty: float) -> list[int]:
    """Return the change points with the least sum of squared deviations and penalties."""
    try:
        from ruptures import KernelCPD
    except ImportError as error:
        raise UserError("change points need ruptures: pip install 'charact[history]'") from error
    found = KernelCPD(kernel="linear", min_size=MIN_SEGMENT).fit(ranks[:, None])
    # Slightly more than a tie: it would be broken by rounding.
    return [int(end) for end in found.predict(pen=penalty * (1 + 1e-9))[:-1]]
