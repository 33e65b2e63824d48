"""Sparse against dense products: where leaving out zeros begins to pay."""

import math
from itertools import pairwise

import pandas as pd

from charact.analysis.once import once
from charact.analysis.operations import operation_times
from charact.store import Run

_SIZE = r"(\d+x\d+x\d+)"
_PLACE = ["size", "precision", "device", "direction"]
_SERIES = ["size", "layout", "precision", "device", "direction"]


@once
def sparse_speeds(run: Run) -> pd.DataFrame:
    """Time of every sparse product beside a dense one of the same size, the sparsest first.

    A dense product of that size is one of the kind `sparse_gemm` in the layout 'dense', or a `gemm` of the same sizes
    that transposes nothing.

    Columns: case; size (MxNxK); layout; precision; device; direction; density_frac, the share of numbers that are not
    zero; time_s; dense_s, the median of the dense products' times (null where none was measured); ratio, time_s /
    dense_s: below 1 sparse is faster.
    """
    times = operation_times(run)
    times = times[times["operation"].isin(["gemm", "sparse_gemm"]) & times["median_s"].notna()]
    times = times.assign(size=times["problem"].str.extract(_SIZE, expand=False))
    is_dense = times["layout"].isna() | (times["layout"] == "dense")
    alike = (times["operation"] == "sparse_gemm") | (times["problem"] == "gemm:" + times["size"].astype("str"))
    dense = times[is_dense & alike].groupby(_PLACE, as_index=False).agg(dense_s=("median_s", "median"))
    sparse = times[~is_dense & times["sparsity_frac"].notna()].merge(dense, on=_PLACE, how="left")
    sparse = sparse.assign(density_frac=1 - sparse["sparsity_frac"], time_s=sparse["median_s"],
                           ratio=sparse["median_s"] / sparse["dense_s"].astype("float64"))
    columns = ["case", *_SERIES, "density_frac", "time_s", "dense_s", "ratio"]
    return sparse.sort_values("density_frac", kind="stable", ignore_index=True)[columns]


@once
def sparse_crossover(run: Run) -> pd.DataFrame:
    """Density below which a sparse product is faster than the dense one of the same size.

    Between two densities that were measured the logarithm of the ratio is a line over the logarithm of the density.
    Where the ratio crosses 1 more than once, the lowest density counts.

    Columns: size; layout; precision; device; direction; num_densities; low_density_frac and high_density_frac, the
    range that was measured; crossover_density_frac; reason, why there is none.
    """
    rows = []
    for key, points in sparse_speeds(run).groupby(_SERIES, sort=False):
        by_density = points.groupby("density_frac")["ratio"].median()
        measured = list(zip(by_density.index.tolist(), by_density.tolist(), strict=True))
        crossover, reason = _crossover(measured)
        rows.append([*key, len(measured), measured[0][0], measured[-1][0], crossover, reason])
    found = pd.DataFrame(rows, columns=[*_SERIES, "num_densities", "low_density_frac", "high_density_frac",
                                        "crossover_density_frac", "reason"])  # fmt: skip
    return found.astype({"crossover_density_frac": "float64", "reason": "object"})


def _crossover(points: list[tuple[float, float]]) -> tuple[float | None, str | None]:
    """Where ratios, by rising density, first pass 1 upwards; or why they do not."""
    if any(math.isnan(ratio) for _, ratio in points):
        return None, "no dense product of this size was measured"
    for (density, ratio), (next_density, next_ratio) in pairwise(points):
        if ratio <= 1 < next_ratio:
            reached = -math.log(ratio) / (math.log(next_ratio) - math.log(ratio))
            return math.exp(math.log(density) + reached * (math.log(next_density) - math.log(density))), None
    # No ratio up to 1 is followed by one above it: either all are above 1, or the last one is not.
    faster = "sparse" if points[-1][1] <= 1 else "dense"
    where = "the only density measured" if len(points) == 1 else "every density measured"
    if any((ratio <= 1) != (faster == "sparse") for _, ratio in points):
        where = "the highest density measured"
    return None, f"{faster} is faster at {where}"
