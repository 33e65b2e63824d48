"""Iterations that took much longer than the others of their case, such as one that also wrote a checkpoint."""

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.profile.case_summary import iteration_times, phase_times
from charact.core.slow_iterations import slow_limit_s
from charact.record.reader import Run


@memoize
def typical_iterations(run: Run) -> pd.DataFrame:
    """Return `iteration_times` without the slow iterations of each case.

    An iteration is slow if it takes more than 1.5 times the median and lies more than three interquartile ranges above
    the upper quartile. Cases with fewer than 6 iterations have no slow ones.
    """
    walls = iteration_times(run)
    limits = walls.groupby("case", sort=False)["wall_s"].transform(lambda times: slow_limit_s(times.tolist()))
    return walls[walls["wall_s"] <= limits]


@memoize
def slow_iterations(run: Run) -> pd.DataFrame:
    """Return what slow iterations add to each case that has any; see `typical_iterations`.

    Columns: case; num_slow; num_iterations, all; extra_s, how much longer the slow ones took together than as many
    median iterations; extra_frac = extra_s / the time of all iterations; phase, the one that contributes most to
    extra_s; phase_frac, its share of extra_s.
    """
    walls = iteration_times(run)
    walls["is_slow"] = ~walls.index.isin(typical_iterations(run).index)
    phases = phase_times(run).pivot_table("time_s", ["case", "iteration"], "phase", aggfunc="sum", fill_value=0.0)
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
