"""Scaling: how much faster several ranks are than one process, and what the loss is due to."""

from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.significance import Sample, judged, timed
from charact.analysis.profile.case_summary import iteration_times, phase_times
from charact.analysis.ranks.matching import mismatches, rank_cases, rank_collectives, why_not_recorded
from charact.analysis.ranks.waiting import rank_phase_times, waits
from charact.record.reader import Run

CAUSES = ("imbalance_s", "exposed_s", "slower_compute_s", "rest_s")
"""Columns of `scaling` that sum to `lost_s`."""
_ALIKE = ["workload", "variant", "mode", "input_size", "precision", "device", "attention"]
_COLUMNS = ["cases", *_ALIKE, "parallel", "kind", "num_ranks", "batch_size", "global_batch_size", "base_s", "time_s",
            "samples_per_s", "efficiency", "low", "high", "lost_s", *CAUSES, "cause_reason", "phase", "phase_lost_s",
            "reason"]
_NO_WEAK = "no single process with this batch: add 1 to --nproc"
_NO_STRONG = "no single process with the batch of all ranks: add it to --batch-sizes, and 1 to --nproc"


@memoize
def scaling(run: Run) -> pd.DataFrame:
    """Return the scaling efficiency of cases that were timed on several ranks.

    Columns: cases, those of the ranks; workload, variant, mode, input_size, precision, device, attention (its backend,
    or null); parallel, how the ranks train together; kind, 'weak' (the single process has the batch of a rank) or
    'strong' (it has the batch of all
    ranks); num_ranks; batch_size of each rank and global_batch_size of all; base_s and time_s, the median iteration of
    the single process and of the ranks, whose iteration lasts as long as that of the slowest rank; samples_per_s of all
    ranks; efficiency, base_s / time_s for weak and base_s / (num_ranks time_s) for strong scaling, with its 95 %
    interval low to high (null below 6 iterations); lost_s = time_s minus the time at an efficiency of 1; the causes of
    the loss; phase with the largest difference to that time, and that difference (phase_lost_s, median of the slowest
    rank); reason, why there is no efficiency.

    The causes are those of the mean rank and sum to lost_s: imbalance_s, in which it waits for later ranks; exposed_s,
    in which it waits for the exchange itself; slower_compute_s, its other time minus the time at an efficiency of 1
    (negative if it is faster); rest_s, by which these three miss lost_s, such as the slowest rank's iteration minus the
    mean rank's. cause_reason is why they are not known.

    Work that one of n ranks does in addition is imbalance for (n-1)/n, and slower compute for 1/n: shared equally, it
    would still take that long.

    *Error*: the interval is that of the iterations of one run each, which do not show how runs differ.
    """
    groups = _groups(run)
    rows = []
    for key, group in groups.items():
        if group["num_ranks"] > 1:
            for kind, batch_size in (("weak", group["batch_size"]), ("strong", group["global_batch_size"])):
                rows.append(_row(run, group, groups.get((*key[:len(_ALIKE)], None, 1, batch_size)), kind))
    return pd.DataFrame(rows, columns=_COLUMNS)


def case_scaling(run: Run) -> pd.DataFrame:
    """Return `scaling` for each case of a rank: its columns, with case instead of cases."""
    return scaling(run).rename(columns={"cases": "case"}).explode("case", ignore_index=True)


def _groups(run: Run) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the cases that belong together, the ranks of one program or a single process, by what they are."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    has_parallel = any(entry.parallel for entry in run.entries)
    for entry in run.entries:
        if not has_parallel or entry.status != "ok" or not entry.passes.timing.num_iterations:
            continue
        num_ranks = (entry.world_size if entry.parallel else None) or 1
        facts = {name: getattr(entry, name) for name in (*_ALIKE, "parallel")} | {
            "num_ranks": num_ranks, "batch_size": entry.batch_size}
        group = groups.setdefault(tuple(facts.values()), facts | {
            "global_batch_size": (entry.batch_size or 0) * num_ranks, "cases": []})
        group["cases"].append(entry.case)
    return groups


def _row(run: Run, group: dict[str, Any], base: dict[str, Any] | None, kind: str) -> dict[str, Any]:
    sample = _sample(run, group)
    row = group | {
        "kind": kind, "time_s": sample.value, "samples_per_s": group["global_batch_size"] / sample.value}
    if base is None:
        return row | {"reason": _NO_WEAK if kind == "weak" else _NO_STRONG}
    share = 1 if kind == "weak" else group["num_ranks"]
    base_sample = _sample(run, base)
    ratio, base_s = judged(base_sample, sample), base_sample.value
    lost_s = sample.value - base_s / share
    lost = _phases(run, group).sub(_phases(run, base) / share, fill_value=0.0)
    return row | {
        "base_s": base_s, "efficiency": base_s / sample.value / share,
        "low": None if ratio.high is None else 1 / ratio.high / share,
        "high": None if ratio.low is None else 1 / ratio.low / share,
        "lost_s": lost_s, **_causes(run, group, base_s / share, lost_s),
        "phase": lost.idxmax(), "phase_lost_s": lost.max(),
    }


def _causes(run: Run, group: dict[str, Any], ideal_s: float, lost_s: float) -> dict[str, Any]:
    cases, work = rank_cases(run), rank_work(run)
    work = work[work["program"].isin(cases.loc[cases["case"].isin(group["cases"]), "program"])]
    if work.empty:
        return {"cause_reason": "a rank is missing"}
    row = work.iloc[0]
    if isinstance(row["reason"], str):
        return {"cause_reason": row["reason"]}
    slower_s = row["compute_s"] - ideal_s
    return {"imbalance_s": row["imbalance_s"], "exposed_s": row["exposed_s"], "slower_compute_s": slower_s,
            "rest_s": round(lost_s - row["imbalance_s"] - row["exposed_s"] - slower_s, 12)}


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
    columns = ["program", "compute_s", "imbalance_s", "exposed_s", "reason"]
    return pd.DataFrame(rows, columns=columns).astype({"program": "str"})


def _why_unknown(run: Run, program: str, cases: pd.DataFrame) -> str | None:
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


def _sample(run: Run, group: dict[str, Any]) -> Sample:
    walls = iteration_times(run)
    slowest = walls[walls["case"].isin(group["cases"])].groupby("iteration")["wall_s"].max()
    return timed(slowest.tolist())


def _phases(run: Run, group: dict[str, Any]) -> "pd.Series[float]":
    """Return the median time of each phase, of the rank in which it takes longest (s)."""
    times = phase_times(run)
    medians = times[times["case"].isin(group["cases"])].groupby(["case", "phase"])["time_s"].median()
    return medians.groupby("phase").max()
