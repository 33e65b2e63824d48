"""Series over iterations: disjoint groups of slow ones, each with its reason, and robust slopes."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from charact.core.slow_iterations import slow_limit_s
from charact.core.units import quantity
from charact.record.schema import PHASES

_SLOWER = 1.2
"""Minimum ratio of the median time of a group to that of the other iterations."""
_FAR_SLOWER = 3.0
"""Ratio of an iteration's time to that of the next from which a stall belongs to the next one's input."""
_DISTINCT_FRAC = 0.7
_QUANTILE = 0.9
"""Minimum share of a group's iterations that are slower than this quantile of the others."""
_FEWEST = 2
"""Minimum number of iterations of a group."""
_MOST_PERIOD = 8
"""Longest period of which every offset is tried; longer periods are searched among the slow iterations only."""
_MOST_SLOW = 40
"""Number of slowest iterations whose distances are tried as periods."""
_REGULAR_FRAC = 0.8
_EXPLAINED_FRAC = 0.4
"""Minimum shares of a period's iterations that are slow, and of the slow iterations' extra time that it explains."""
_MOST_CHANCE_FRAC = 0.02
"""Largest probability that as many slow iterations lie at some period by chance."""
_MANY = 40
"""Number of iterations of a period from which most of them are never slow by chance."""

_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SlowGroup:
    """Iterations that are slow for one reason."""

    indices: list[int]
    """Positions among the case's iterations, warm-up included."""
    extra_s: float
    """Time (s) beyond that of as many typical iterations."""
    typical_s: float
    slow_s: float
    """Median of the slow iterations."""
    phase: str
    """Phase with most of the extra time."""
    period: int | None = None
    """Distance of the iterations; None without a period."""

    def __str__(self) -> str:
        return f"{quantity(self.slow_s, 's')}, the others {quantity(self.typical_s, 's')}"


def slow_groups(rows: pd.DataFrame) -> dict[str, SlowGroup]:
    """Return the groups of slow iterations of a case by reason: each is in the first group that claims it.

    Reasons: 'compilation', 'garbage_collection', 'epoch_start', 'new_input_shapes', 'long_inputs', 'periodic_work',
    'slow_iterations' (no pattern).
    """
    left = np.ones(len(rows), dtype=bool)
    groups: dict[str, SlowGroup] = {}
    for reason, mask, period in _candidates(rows, left):
        group = _group(rows, mask & left, left, period)
        if group is not None and reason not in groups:
            groups[reason] = group
            left[group.indices] = False
    return groups


def _candidates(rows: pd.DataFrame, left: _Mask) -> Iterator[tuple[str, _Mask, int | None]]:
    """Yield reasons with the iterations that they may explain; `left` marks those that no group has claimed so far."""
    walls = rows["wall_s"].to_numpy()
    yield "compilation", _mask(rows["compile_s"].fillna(0.0) > 0.3 * rows["wall_s"]), None
    yield "garbage_collection", _mask(rows["gc_s"].fillna(0.0) > 0.3 * rows["wall_s"]), None
    yield "epoch_start", _without_fast_first(_mask(rows["first_of_epoch"].fillna(0) == 1), walls), None
    shapes = rows["input_shapes"]
    is_new = _mask(shapes.notna() & ~shapes.duplicated())
    if shapes.nunique() <= len(rows) / 4:
        yield "new_input_shapes", _without_fast_first(_or_before(is_new, walls), walls), None
    numels = shapes.map(num_elements).to_numpy(dtype=float)
    if shapes.nunique() > 1:
        yield "long_inputs", numels > 1.5 * np.nanmedian(numels), None
    left[_mask(rows["kind"] == "warm-up")] = False  # lazy imports, first allocations
    positions = rows["position"].to_numpy()
    periodic = _periodic(positions, walls, left)
    if periodic is not None:
        yield "periodic_work", *periodic
    num_classes = sum(range(2, _MOST_PERIOD + 1))
    for period in range(2, _MOST_PERIOD + 1):
        for offset in range(period):
            members = positions % period == offset
            is_slow = walls > np.quantile(walls[left & ~members], _QUANTILE) if (left & ~members).any() else ~left
            if not _may_be_chance(members, is_slow, left, num_classes):
                yield "periodic_work", members, period
    yield "slow_iterations", _is_slow(walls, left), None


def _mask(values: "pd.Series[bool]") -> _Mask:
    mask: _Mask = np.asarray(values, dtype=np.bool_)
    return mask


def _or_before(mask: _Mask, walls: npt.NDArray[np.float64]) -> _Mask:
    """Move the flag of an iteration to the previous one if that takes several times as long; other flags stay.

    Without a loader, an iteration begins with its forward, so work before the forward counts in the previous iteration.
    """
    slower = np.zeros_like(mask)
    for index in np.flatnonzero(mask):
        slower[index - 1 if index and walls[index - 1] > _FAR_SLOWER * walls[index] else index] = True
    return slower


def _without_fast_first(mask: _Mask, walls: npt.NDArray[np.float64]) -> _Mask:
    """Clear the flag of the first iteration, which is always new, unless it is as slow as the other flagged ones."""
    later = mask.copy()
    later[:1] = False
    return later if later.any() and walls[0] < np.median(walls[later]) / 2 else mask


def num_elements(shapes: str | None) -> float:
    """Return the number of elements of tensors of given shapes, as JSON; NaN if not known."""
    if not isinstance(shapes, str):
        return float("nan")
    return float(sum(math.prod(shape) for shape in json.loads(shapes)))


def _is_slow(walls: npt.NDArray[np.float64], left: _Mask) -> _Mask:
    is_slow: _Mask = left & (walls > slow_limit_s(walls[left].tolist()))
    return is_slow


def _periodic(positions: npt.NDArray[np.intp], walls: npt.NDArray[np.float64], left: _Mask
              ) -> tuple[_Mask, int] | None:
    """Return the iterations of the period that explains most of the slow iterations' extra time, and the period.

    Nearly all iterations of the period are slow; other slow iterations may lie between them. None without a period.
    """
    is_slow = _is_slow(walls, left)
    if is_slow.sum() < 3:
        return None
    extra = np.where(is_slow, walls - np.median(walls[left]), 0.0)
    slowest = np.sort(positions[np.argsort(-extra)[:min(_MOST_SLOW, int(is_slow.sum()))]])
    classes = {(int(after - before), int(before % (after - before)))
               for number, before in enumerate(slowest) for after in slowest[number + 1:] if after - before > 1}
    explained = {}
    for period, offset in classes:
        members = left & (positions % period == offset)
        if is_slow[members].mean() >= _REGULAR_FRAC and not _may_be_chance(members, is_slow, left, len(classes)):
            explained[period, offset] = float(extra[members].sum())
    if not explained:
        return None
    period, offset = max(explained, key=lambda each: (explained[each], -each[0]))
    if explained[period, offset] < _EXPLAINED_FRAC * extra.sum():
        return None
    return positions % period == offset, period


def _may_be_chance(members: _Mask, is_slow: _Mask, left: _Mask, num_classes: int) -> bool:
    """Return whether as many members could be slow by chance, in one of a number of classes that were tried.

    Drawn at random from the iterations, as many as there are members would have as many slow ones by the hypergeometric
    distribution. Two could always be slow: any two have a distance.
    """
    num_members, num_hits = int((members & left).sum()), int((is_slow & members & left).sum())
    if num_members >= _MANY:
        return False
    num, num_slow = int(left.sum()), int((is_slow & left).sum())
    ways = sum(math.comb(num_slow, hits) * math.comb(num - num_slow, num_members - hits)
               for hits in range(num_hits, num_members + 1))
    return num_members < 3 or num_classes * ways > _MOST_CHANCE_FRAC * math.comb(num, num_members)


def _group(rows: pd.DataFrame, mask: _Mask, left: _Mask, period: int | None) -> SlowGroup | None:
    """Return the group of the flagged iterations if they are distinctly slower than the others; else None."""
    walls = rows["wall_s"].to_numpy()
    others = left & ~mask
    if mask.sum() < _FEWEST or others.sum() < 4:
        return None
    typical_s, slow_s = float(np.median(walls[others])), float(np.median(walls[mask]))
    is_distinct = np.mean(walls[mask] > np.quantile(walls[others], _QUANTILE)) >= _DISTINCT_FRAC
    if slow_s < _SLOWER * typical_s or not is_distinct:
        return None
    extra = {phase: float((column[mask] - np.median(column[others])).sum())
             for phase in PHASES for column in [rows[f"{phase}_s"].fillna(0.0).to_numpy()]}
    return SlowGroup([int(index) for index in np.flatnonzero(mask)],
                     float(np.maximum(walls[mask] - typical_s, 0.0).sum()), typical_s, slow_s,
                     max(extra, key=extra.__getitem__), period)


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
    xs, ys = _medians(values)
    fit = theilslopes(ys, xs, alpha=0.95)
    return Trend(float(fit.slope), float(fit.low_slope), float(fit.high_slope), float(fit.intercept),
                 int(series.index.max() - series.index.min() + 1))


def _medians(values: "pd.Series[float]") -> tuple[list[float], list[float]]:
    """Return the mean place and the median of each block of neighbours, at most 200 blocks."""
    num_blocks = min(_MOST_POINTS, max(min(_FEWEST_POINTS, len(values)), len(values) // 5))
    places, blocks = (np.array_split(column.to_numpy(dtype=float), num_blocks) for column in (values.index, values))
    return [float(each.mean()) for each in places], [float(np.median(each)) for each in blocks]


def is_gradual(series: "pd.Series[float]") -> bool:
    """Return whether a line fits a series of at least 3 values better than one step up or down does."""
    places, values = (np.array(column) for column in _medians(series.dropna()))
    line = np.polynomial.Polynomial.fit(places, values, 1)
    steps = (np.concatenate([values[:place] - values[:place].mean(), values[place:] - values[place:].mean()])
             for place in range(1, len(values)))
    return bool(np.sum((values - line(places)) ** 2) <= min(np.sum(step ** 2) for step in steps))


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
