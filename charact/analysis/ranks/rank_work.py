"""What the mean rank of a program does in an iteration: compute, wait for later ranks, and exchange."""

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.ranks.matching import mismatches, rank_cases, rank_collectives, why_not_recorded
from charact.analysis.ranks.waiting import rank_phase_times, waits
from charact.record.reader import Run

_COLUMNS = ["program", "compute_s", "imbalance_s", "exposed_s", "reason"]


@memoize
def rank_work(run: Run) -> pd.DataFrame:
    """Return how the mean rank of each program spends an iteration (medians over the iterations).

    Columns: program; compute_s, in which the host does not wait for other ranks; imbalance_s, in which it waits for a
    rank that calls a collective later; exposed_s, the rest of its waiting: communication that no computation hides;
    reason, why these are not known.

    *Error*: an imbalance is at most the waiting in its collective, so a rank that comes late behind computation of the
    others is no imbalance. The start of an exchange on the last rank counts as exposed communication.
    """
    rows = []
    for program, cases in rank_cases(run).groupby("program", sort=False):
        rows.append([program, None, None, None, _why_unknown(run, str(program), cases)])
        if rows[-1][-1] is not None:
            continue
        times, waited = (table[table["program"] == program] for table in (rank_phase_times(run), waits(run)))
        is_waiting = times["phase"] == "communication"
        per_rank = ["iteration", "rank"]
        compute = times[~is_waiting].groupby(per_rank)["time_s"].sum()
        waiting = times[is_waiting].groupby(per_rank)["time_s"].sum().reindex(compute.index, fill_value=0.0)
        late = waited.assign(late_s=waited[["late_s", "exposed_s"]].min(axis=1)).groupby(per_rank)["late_s"].sum()
        late = late.reindex(compute.index, fill_value=0.0)
        rows[-1][1:4] = [float(values.groupby("iteration").mean().median())
                         for values in (compute, late, waiting - late)]
    return pd.DataFrame(rows, columns=_COLUMNS).astype({"program": "str"})


def _why_unknown(run: Run, program: str, cases: pd.DataFrame) -> str | None:
    """Return why it is not known what a program's ranks wait for; None if it is."""
    if reason := why_not_recorded(run, program):
        return reason
    unmatched = mismatches(run).set_index("program")["reason"]
    if program in unmatched.index:
        return str(unmatched[program])
    if lost := sum(run.entry(case).passes.collectives.num_lost for case in cases["case"]):
        return f"PyTorch’s flight recorder overwrote {lost} collectives: set TORCH_FR_BUFFER_SIZE to a larger number"
    collectives = rank_collectives(run)
    if collectives[collectives["program"] == program].empty:
        return "the ranks exchanged nothing"
    return None
