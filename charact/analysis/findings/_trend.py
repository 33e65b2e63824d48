"""Robust slopes of series over iterations."""

from typing import NamedTuple

import numpy as np
import pandas as pd

_MOST_POINTS = 200
_FEWEST_POINTS = 12


class Trend(NamedTuple):
    """Slope of a series per iteration, with the ends of its 95 % interval, and the line's value at the start."""

    slope: float
    low: float
    high: float
    start: float
    num_iterations: int

    @property
    def growth(self) -> float:
        """Growth from the first iteration to the last one."""
        return self.slope * self.num_iterations


def trend(series: "pd.Series[float]", fewest: int = _FEWEST_POINTS) -> Trend | None:
    """Return the Theil-Sen slope of a series over the iterations (its index); None for fewer than `fewest` values.

    Neighbouring iterations resemble each other, which would make the interval too narrow. So the slope is that of the
    medians of blocks of neighbours, at most 200.

    *Source*: P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, JASA 63 (1968).
    """
    from scipy.stats import theilslopes

    values = series.dropna()
    if len(values) < fewest:
        return None
    num_blocks = min(_MOST_POINTS, max(min(_FEWEST_POINTS, len(values)), len(values) // 5))
    xs, ys = (np.array_split(column.to_numpy(dtype=float), num_blocks) for column in (values.index, values))
    fit = theilslopes([np.median(block) for block in ys], [block.mean() for block in xs], alpha=0.95)
    return Trend(float(fit.slope), float(fit.low_slope), float(fit.high_slope), float(fit.intercept),
                 int(series.index.max() - series.index.min() + 1))


def steady_growth(series: "pd.Series[float]", least: float, fewest: int = _FEWEST_POINTS) -> Trend | None:
    """Return the trend of a series that grows throughout by an amount or more; None for any other series.

    It grows throughout if the medians of its thirds do, each by 5 % of the whole growth, or by a quarter of the first.
    It needs `fewest` values.
    """
    values = series.dropna()
    if len(values) < fewest:
        return None
    first, second, third = (values.iloc[part].median() for part in np.array_split(np.arange(len(values)), 3))
    if min(second - first, third - second) <= 0 or third - first < least / 3:
        return None  # most series: they need no SciPy, which takes a second to import
    line = trend(values, fewest)
    if line is None or line.low <= 0 or line.growth < least:
        return None
    return line if min(second - first, third - second) >= min(line.growth / 20, first / 4) else None
