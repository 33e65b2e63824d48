"""Sparse against dense products, and the density at which they are equally fast."""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.operations.timings import operation_times
from charact.core.units import share
from charact.record.reader import Run

_SIZE = r"(\d+x\d+x\d+)"
_PLACE = ["size", "precision", "device", "direction"]
_SERIES = ["size", "layout", "precision", "device", "direction"]
_FASTER = ("sparse", "dense")
_CROSSOVER = ["crossover_density_frac", "from_density_frac", "to_density_frac"]


@memoize
def sparse_speeds(run: Run) -> pd.DataFrame:
    """Return the time of every sparse product and of a dense one of the same size, sparsest first.

    The dense product is a `sparse_gemm` in the layout 'dense', or a `gemm` of the same sizes without transposition.

    Columns: case; size (MxNxK); layout; precision; device; direction; density_frac, the share of nonzero numbers;
    time_s; dense_s, the median of the dense products' times (null if not measured); ratio, time_s / dense_s: below 1
    sparse is faster; low to high, its range: from the lower end of the sparse time's 95 % interval over the highest of
    the dense ones', to the upper end over the lowest (null if an interval is).
    """
    times = operation_times(run)
    times = times[times["operation"].isin(["gemm", "sparse_gemm"]) & times["median_s"].notna()]
    times = times.assign(size=times["problem"].str.extract(_SIZE, expand=False))
    is_dense = times["layout"].isna() | (times["layout"] == "dense")
    alike = (times["operation"] == "sparse_gemm") | (times["problem"] == "gemm:" + times["size"].astype("str"))
    dense = times[is_dense & alike].groupby(_PLACE, as_index=False).agg(
        dense_s=("median_s", "median"), dense_low_s=("low_s", "min"), dense_high_s=("high_s", "max"))
    sparse = times[~is_dense & times["sparsity_frac"].notna()].merge(dense, on=_PLACE, how="left")
    numbers = ["dense_s", "dense_low_s", "dense_high_s"]
    sparse = sparse.astype(dict.fromkeys(numbers, "float64"))
    sparse = sparse.assign(density_frac=1 - sparse["sparsity_frac"], time_s=sparse["median_s"],
                           ratio=sparse["median_s"] / sparse["dense_s"], low=sparse["low_s"] / sparse["dense_high_s"],
                           high=sparse["high_s"] / sparse["dense_low_s"])  # fmt: skip
    columns = ["case", *_SERIES, "density_frac", "time_s", "dense_s", "ratio", "low", "high"]
    return sparse.sort_values("density_frac", kind="stable", ignore_index=True)[columns]


@dataclass(frozen=True)
class _Point:
    """A measured density, and the ratio of sparse to dense there."""

    density_frac: float
    ratio: float
    faster: str
    """'sparse' or 'dense', if the ratio's interval excludes 1; else why that is unknown, which ends in "which"."""


@memoize
def sparse_crossover(run: Run) -> pd.DataFrame:
    """Return the density below which a sparse product is faster than the dense one of the same size.

    It is between two measured densities: at the lower, sparse is significantly faster; at the higher, dense is. Its
    value is interpolated on log ratio and log density between the two neighbours where the ratio first exceeds 1. If
    that happens more than once, the lowest density counts.

    Columns: size; layout; precision; device; direction; num_densities; low_density_frac and high_density_frac, the
    measured range; crossover_density_frac, with from_density_frac and to_density_frac, the measured densities around
    it; reason, why there is none.
    """
    rows = []
    for key, speeds in sparse_speeds(run).groupby(_SERIES, sort=False):
        points = []
        for density_frac, same in speeds.groupby("density_frac"):  # one or several cases
            hidden = "too few repetitions hide which" if same["low"].isna().any() else "noise hides which"
            faster = "sparse" if (same["high"] < 1).all() else "dense" if (same["low"] > 1).all() else hidden
            points.append(_Point(float(str(density_frac)), float(same["ratio"].median()), faster))
        crossover = _crossover(points)
        rows.append([*key, len(points), points[0].density_frac, points[-1].density_frac,
                     *((*crossover, None) if crossover else (None, None, None, _reason(points)))])
    numbers = ["low_density_frac", "high_density_frac", *_CROSSOVER]
    table = pd.DataFrame(rows, columns=[*_SERIES, "num_densities", *numbers, "reason"])
    return table.astype(dict.fromkeys(numbers, "float64") | {"reason": "object"})


def _crossover(points: list[_Point]) -> tuple[float, float, float] | None:
    certain = [number for number, point in enumerate(points) if point.faster in _FASTER]
    for first, last in pairwise(certain):
        if (points[first].faster, points[last].faster) == ("sparse", "dense"):
            below, above = next((below, above) for below, above in pairwise(points[first : last + 1])
                                if below.ratio <= 1 < above.ratio)  # fmt: skip
            reached = -math.log(below.ratio) / (math.log(above.ratio) - math.log(below.ratio))
            between = math.log(below.density_frac), math.log(above.density_frac)
            density_frac = math.exp(between[0] + reached * (between[1] - between[0]))
            return density_frac, points[first].density_frac, points[last].density_frac
    return None


def _reason(points: list[_Point]) -> str:
    if any(math.isnan(point.ratio) for point in points):
        return "no dense product of this size was measured"
    lowest, highest = share(points[0].density_frac), share(points[-1].density_frac)
    if len(points) == 1:
        return f"no crossover found: at {lowest}, the only density measured, {points[0].faster} is faster"
    numbers = Counter(point.faster for point in points)
    names = [name for name in (*_FASTER, *sorted(numbers.keys() - _FASTER)) if numbers[name]]
    of_all = "all {}" if len(names) == 1 else f"{{}} of {len(points)}"
    parts = [f"{name} is faster at {of_all.format(numbers[name])} densities" for name in names]
    return f"no crossover found between {lowest} and {highest}: {', '.join(parts)}"
