"""Waiting: how long each rank waits in collectives for the one that comes last.

All ranks leave a collective nearly at the same time. So the rank that waits the shortest time, from its own call to the
end on its own clock, came last, and no clock is compared with another rank's.
"""

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.profile.case_summary import phase_times
from charact.analysis.ranks.matching import matched_iterations, mismatches, rank_cases, rank_collectives
from charact.record.reader import Run

_WAITS = ["program", "iteration", "rank", "phase", "operation", "group", "bytes", "wait_s", "exposed_s", "last_rank",
          "late_s"]
_CALL = ["program", "iteration", "group", "operation", "sequence"]


@memoize
def rank_phase_times(run: Run) -> pd.DataFrame:
    """Return the time of each phase of each rank in each matched iteration.

    Columns: program; iteration; rank; phase; time_s on the device if available, else on the host. `communication` is
    the time in which the host only waited, or on a device the communication that no computation there hides; other
    phases exclude it.
    """
    times = phase_times(run).rename(columns={"iteration": "own_iteration"})
    rows = matched_iterations(run).merge(times[["case", "own_iteration", "phase", "time_s"]],
                                         on=["case", "own_iteration"])
    return rows[["program", "iteration", "rank", "phase", "time_s"]]


@memoize
def waits(run: Run) -> pd.DataFrame:
    """Return how long each rank waited in each collective whose end was observed on every rank.

    Columns: program; iteration; rank; phase, operation and group of the collective; its bytes; wait_s, from the rank's
    call to the end; exposed_s, in which its host did nothing else; last_rank, the rank that called last; late_s, how
    much longer this rank waited than that one, which waited for the transfer alone. Without recorded collectives a row
    is a whole iteration's `communication`, and phase, operation, group and bytes are null. Programs of `mismatches`
    have no rows.

    *Error*: ranks do not leave a collective at exactly the same time; on gloo the difference is a part of the
    transfer's own time.
    """
    cases = rank_cases(run)
    cases = cases[~cases["program"].isin(mismatches(run)["program"])]
    num_ranks = cases.groupby("program")["rank"].nunique()
    observed = rank_collectives(run).dropna(subset=["wait_s"])
    observed = observed[observed["program"].isin(num_ranks.index)]
    complete = observed.groupby(_CALL)["rank"].transform("nunique") == observed["program"].map(num_ranks)
    observed = observed[complete]
    phases = rank_phase_times(run).query("phase == 'communication'").rename(columns={"time_s": "wait_s"})
    phases = phases[phases["program"].isin(set(num_ranks.index) - set(observed["program"]))]
    phases = phases.assign(exposed_s=phases["wait_s"], phase=None, operation="", bytes=None, group="", sequence=0)
    rows = pd.concat([table for table in (observed, phases) if len(table)] or [observed], ignore_index=True)
    if rows.empty:
        return rows.reindex(columns=_WAITS)
    shortest = rows.loc[rows.groupby(_CALL)["wait_s"].idxmin(), [*_CALL, "rank", "wait_s"]]
    shortest = shortest.rename(columns={"rank": "last_rank", "wait_s": "least_s"})
    rows = rows.merge(shortest, on=_CALL)
    operation = rows["operation"].astype("object").where(rows["operation"] != "", None)
    return rows.assign(late_s=rows["wait_s"] - rows["least_s"], operation=operation)[_WAITS]


@memoize
def waiting_matrix(run: Run) -> pd.DataFrame:
    """Return how long each rank waits for each other rank.

    Columns: program; rank, which waits; for_rank, which came last; wait_s, mean over the iterations with a
    collective; share_frac of the rank's mean iteration.
    """
    rows = waits(run)
    walls = rank_phase_times(run).groupby(["program", "iteration", "rank"])["time_s"].sum()
    means = walls.groupby(["program", "rank"]).mean()
    pairs = []
    for program, of_program in rows.groupby("program", sort=False):
        num_iterations = of_program["iteration"].nunique()
        sums = of_program.groupby(["rank", "last_rank"])["late_s"].sum() / num_iterations
        ranks = sorted(of_program["rank"].unique())
        pairs += [[program, rank, other, float(sums.get((rank, other), 0.0)),
                   float(sums.get((rank, other), 0.0) / means[program, rank])]
                  for rank in ranks for other in ranks if other != rank]
    columns = ["program", "rank", "for_rank", "wait_s", "share_frac"]
    return pd.DataFrame(pairs, columns=columns).astype({"wait_s": "float64", "share_frac": "float64"})


def rank_waits(run: Run) -> pd.DataFrame:
    """Return `waiting_matrix` by case, the longest waits of a case first.

    Columns: case; for_rank; wait_s; share_frac.
    """
    cases = rank_cases(run)[["program", "rank", "case"]]
    rows = waiting_matrix(run).merge(cases, on=["program", "rank"])
    rows = rows.sort_values("wait_s", ascending=False, kind="stable", ignore_index=True)
    return rows[["case", "for_rank", "wait_s", "share_frac"]]


def late_s(run: Run, case: str) -> float:
    """Return how long a case's rank waits for other ranks in an iteration (median); 0 if that is not known."""
    cases = rank_cases(run)
    own = cases[cases["case"] == case]
    if own.empty:
        return 0.0
    rows = waits(run)
    rows = rows[(rows["program"] == own["program"].iloc[0]) & (rows["rank"] == own["rank"].iloc[0])]
    return float(rows.groupby("iteration")["late_s"].sum().median()) if len(rows) else 0.0
