"""Times of an iteration and memory over the whole time of a long program, from its windows of time."""

import pandas as pd

from charact.analysis.common.row_order import in_order
from charact.record.reader import Run
from charact.record.schema import PHASES

_TIMES = ["median_s", "p90_s", "p99_s", "max_s"]


def window_series(run: Run) -> pd.DataFrame:
    """Return a row for each window of time of a case, in order; none for programs of few iterations.

    Columns: case; window; start_s and end_s since charact began to watch the program; num_iterations; mean_s, median_s,
    p90_s, p99_s and max_s of their times; one column per phase, the mean time of it (s), which sum to mean_s; rss_bytes
    and allocated_bytes at the window's end, null if not sampled or on a CPU.
    """
    rows, phases = run.windows, list(PHASES)
    names = ["case", "window", "start_s", "end_s", "num_iterations", "mean_s", *_TIMES, *phases, "rss_bytes",
             "allocated_bytes"]
    if rows.empty:
        return pd.DataFrame(columns=names)
    wholes, parts = rows[rows["phase"].isna()], rows[rows["phase"].notna()]
    means = parts.assign(mean_s=parts["sum_s"] / parts["num_iterations"]).pivot_table(
        "mean_s", ["case", "window"], "phase", fill_value=0.0, observed=True)
    means = means.reindex(columns=phases, fill_value=0.0)
    series = wholes.assign(mean_s=wholes["sum_s"] / wholes["num_iterations"]).drop(columns=["phase", "sum_s"])
    series = series.join(means, on=["case", "window"]).sort_values("window", kind="stable")
    return in_order(series, run, "case")[names].reset_index(drop=True)


def thinned_windows(series: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return the windows of one case in at most `most` rows: each is one window, or several in a row.

    Of several, means are over all their iterations, quantiles are the median of theirs, max_s is the largest, and
    memory is that of the last.
    """
    places = pd.Series(range(len(series)), series.index) // -(-len(series) // most)
    means = ["mean_s", *PHASES]
    weighted = series.assign(**{name: series[name] * series["num_iterations"] for name in means})
    rows = weighted.groupby(places).agg({
        "case": "first", "window": "first", "start_s": "first", "end_s": "last", "num_iterations": "sum",
        **dict.fromkeys(means, "sum"), **dict.fromkeys(_TIMES[:-1], "median"), "max_s": "max",
        "rss_bytes": "last", "allocated_bytes": "last"})
    return rows.assign(**{name: rows[name] / rows["num_iterations"] for name in means})
