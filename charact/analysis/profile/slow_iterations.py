"""Iterations that took much longer than the others of their case, such as one that also wrote a checkpoint."""

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.profile.case_summary import iteration_times, phase_times
from charact.record.reader import Run

_MIN_ITERATIONS = 6
_SLOW_RATIO = 1.5
"""Smallest ratio to the median of a slow iteration."""
_FAR_OUT = 3.0
"""Distance of a slow iteration from the upper quartile, in interquartile ranges (Tukey's outer fence)."""


@memoize
def typical_iterations(run: Run) -> pd.DataFrame:
    """Return `iteration_times` without the slow iterations of each case.

    An iteration is slow if it takes more than 1.5 times the median and lies more than three interquartile ranges above
    the upper quartile. Cases with fewer than 6 iterations have none.
    """
    walls = iteration_times(run)
    quartiles = walls.groupby("case", sort=False)["wall_s"]
    low, median, high = (quartiles.transform("quantile", share) for share in (0.25, 0.5, 0.75))
    is_slow = (walls["wall_s"] > _SLOW_RATIO * median) & (walls["wall_s"] > high + _FAR_OUT * (high - low))
    return walls[~(is_slow & (quartiles.transform("size") >= _MIN_ITERATIONS))]


@memoize
def slow_iterations(run: Run) -> pd.DataFrame:
    """Return what slow iterations add to each case that has any; see `typical_iterations`.

    Columns: case; num_slow of num_iterations; extra_s, how much longer they took than as many median iterations;
    extra_frac of the time of all iterations; phase, the one that contributes most, and phase_frac, its part of extra_s.
    """
    keys = ["case", "iteration"]
    walls = iteration_times(run).merge(typical_iterations(run)[keys], on=keys, how="left", indicator=True)
    walls["is_slow"] = walls["_merge"] == "left_only"
    phases = phase_times(run).pivot_table(index=keys, columns="phase", values="time_s", aggfunc="sum", fill_value=0.0)
    rows = []
    for case, of_case in walls.groupby("case", sort=False):
        slow = of_case[of_case["is_slow"]]
        if slow.empty:
            continue
        extra_s = float((slow["wall_s"] - of_case["wall_s"].median()).sum())
        of_phases = phases.loc[case]
        extra = of_phases.loc[slow["iteration"]] - of_phases.median()
        by_phase = {str(name): float(column.sum()) for name, column in extra.items()}
        phase = max(by_phase, key=by_phase.__getitem__)
        rows.append([case, len(slow), len(of_case), extra_s, extra_s / of_case["wall_s"].sum(), phase,
                     by_phase[phase] / extra_s])
    columns = ["case", "num_slow", "num_iterations", "extra_s", "extra_frac", "phase", "phase_frac"]
    return pd.DataFrame(rows, columns=columns)
