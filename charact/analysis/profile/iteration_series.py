"""The time of each iteration by phase in order, with the causes of slow ones, thinned for figures."""

import numpy as np
import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.row_order import in_order
from charact.analysis.profile.case_summary import phase_times
from charact.core.slow_iterations import slow_limit_s
from charact.record.reader import Run
from charact.record.schema import PHASES


@memoize
def iteration_series(run: Run) -> pd.DataFrame:
    """Return one row for each recorded iteration, in order; for a watched program, warm-up and passes too.

    Columns: case; index, counted from 0 within the case; kind, one of `ITERATION_KINDS`; one column per phase (s), 0
    in iterations without it; wall_s; slow_phase and extra_s: of a slow timed iteration (see `slow_limit_s`), the phase
    that exceeds its median most, and by how much (s); null for others.
    """
    watched = run.program_iterations
    rows = _of_programs(watched) if len(watched) else pd.DataFrame()
    others = phase_times(run).query("case not in @watched.case")
    if len(others):
        timed = others.pivot_table("time_s", ["case", "iteration"], "phase", aggfunc="sum", fill_value=0.0)
        timed = timed.reset_index().rename(columns={"iteration": "order"}).assign(kind="timed")
        rows = pd.concat([rows, timed], ignore_index=True)
    if rows.empty:
        return pd.DataFrame(columns=["case", "index", "kind", *PHASES, "wall_s", "slow_phase", "extra_s"])
    phases = list(PHASES)
    rows = rows.assign(**{name: rows[name].fillna(0.0) if name in rows else 0.0 for name in phases})
    rows = in_order(rows.sort_values("order", kind="stable"), run, "case")
    rows["index"] = rows.groupby("case").cumcount()
    rows["wall_s"] = rows[phases].sum(axis="columns")
    causes = [_causes(of_case[of_case["kind"] == "timed"], phases) for _, of_case in rows.groupby("case", sort=False)]
    return rows[["case", "index", "kind", *phases, "wall_s"]].join(pd.concat(causes))


def _of_programs(watched: pd.DataFrame) -> pd.DataFrame:
    seconds = {f"{phase}_s": phase for phase in PHASES}
    return watched[["case", "index", "kind", *seconds]].rename(columns={**seconds, "index": "order"})


def _causes(timed: pd.DataFrame, phases: list[str]) -> pd.DataFrame:
    """Return slow_phase and extra_s of each timed iteration of a case, by its label."""
    slow = timed[timed["wall_s"] > slow_limit_s(timed["wall_s"].tolist())][phases]
    extra = slow - timed[phases].median()
    return pd.DataFrame({"slow_phase": extra.idxmax(axis="columns") if len(extra) else None,
                         "extra_s": extra.max(axis="columns")}, index=timed.index)


def thinned(series: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return the series of one case in at most `most` rows: each is one iteration or the mean of several in a row.

    Iterations of different kinds are never in one row. Columns: first and last index; kind; the phases and wall_s,
    means (s); slowest_s; slow_phase and extra_s of the slowest slow iteration in the row, and slow_index; null if there
    is none.
    """
    each = -(-len(series) // most)
    changes = series["kind"].ne(series["kind"].shift()).cumsum()
    places = series.groupby(changes).cumcount() // each
    groups = series.groupby([changes.rename("change"), places.rename("place")], sort=False)
    rows = groups.agg(first=("index", "first"), last=("index", "last"), kind=("kind", "first"),
                      slowest_s=("wall_s", "max"), **{name: (name, "mean") for name in [*PHASES, "wall_s"]})
    slow = series.assign(change=changes, place=places).dropna(subset=["slow_phase"]).sort_values("wall_s")
    slowest = slow.groupby(["change", "place"])[["slow_phase", "extra_s", "index"]].last()
    return rows.join(slowest.rename(columns={"index": "slow_index"})).reset_index(drop=True)


def distribution(walls_s: "pd.Series[float]", most: int) -> pd.DataFrame:
    """Return the share of iterations that took at most a time, in at most `most` + 1 rows, the last of which is all.

    Columns: time_s, ascending; share_frac.
    """
    rows = pd.DataFrame({"time_s": np.sort(walls_s.to_numpy(dtype="float64"))})
    rows["share_frac"] = (rows.index + 1) / len(rows)
    positions = {*range(0, len(rows), -(-len(rows) // most)), len(rows) - 1}
    return rows.loc[sorted(positions)].reset_index(drop=True)


MEMORY_OF_RUN = {"rss_bytes": "resident set", "allocated_bytes": "CUDA allocator", "workers_bytes": "loader processes"}
"""Columns of `memory_over_run` with what they measure."""


def memory_over_run(run: Run, most: int | None = None) -> pd.DataFrame:
    """Return the memory of a watched program at the end of each of its iterations, in order of time.

    At most `most` rows: each then has the largest values of several iterations in a row, and the start of the last.

    Columns: start_s of the iteration since charact began to watch the program, and those of `MEMORY_OF_RUN` (bytes;
    null where not sampled). Without samples, there are no rows.
    """
    rows = run.program_iterations[["start_s", *MEMORY_OF_RUN]].sort_values("start_s", kind="stable", ignore_index=True)
    rows = rows.dropna(subset=list(MEMORY_OF_RUN), how="all")
    if most is None or len(rows) <= most:
        return rows
    return rows.groupby(np.arange(len(rows)) // -(-len(rows) // most)).max()


@memoize
def memory_changes(run: Run) -> pd.DataFrame:
    """Return a row for each column of `memory_over_run` with values: memory, first_bytes, last_bytes, peak_bytes."""
    sampled = memory_over_run(run)
    rows = [[text, values.iloc[0], values.iloc[-1], values.max()]
            for name, text in MEMORY_OF_RUN.items() if len(values := sampled[name].dropna())]
    return pd.DataFrame(rows, columns=["memory", "first_bytes", "last_bytes", "peak_bytes"])
