"""Ranks that a run has and lacks, and their iterations matched by order and checked by the collectives."""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.pass_status import pass_reason
from charact.record.reader import Run

_RANKS = ["program", "case", "rank", "world_size", "hostname", "num_warmup_iterations", "num_iterations"]
_PRESENCE = ["program", "world_size", "num_ranks", "num_missing", "text"]
_MATCHED = ["program", "iteration", "case", "rank", "own_iteration"]


@memoize
def rank_cases(run: Run) -> pd.DataFrame:
    """Return the cases of programs of several ranks.

    Columns: program, the case without its rank, such as train-train; case; rank; world_size; hostname;
    num_warmup_iterations that were left out; num_iterations. A program has cases of at least two ranks.
    """
    rows = []
    for entry in run.entries:
        if entry.rank is not None and (entry.world_size or 1) > 1:
            program = entry.case.removesuffix(f"-rank{entry.rank}")
            program = program if program != entry.case else f"{entry.workload}-{entry.mode}"
            timing = entry.passes.timing
            rows.append([program, entry.case, entry.rank, entry.world_size, entry.hostname,
                         timing.num_warmup_iterations or 0, timing.num_iterations or 0])
    cases = pd.DataFrame(rows, columns=_RANKS).astype({"program": "str", "case": "str", "hostname": "object"})
    several = cases.groupby("program")["rank"].transform("nunique") > 1
    return cases[several].reset_index(drop=True)


@memoize
def rank_presence(run: Run) -> pd.DataFrame:
    """Return the ranks of each program of several ranks.

    Columns: program; world_size, the largest that a rank recorded; num_ranks in the run; num_missing; text, such as
    'ranks 0–3, 5–7 of 8; rank 4 is missing'.
    """
    rows = []
    for program, cases in rank_cases(run).groupby("program", sort=False):
        present, size = sorted(set(cases["rank"])), int(cases["world_size"].max())
        missing = sorted(set(range(size)) - set(present))
        are = "is" if len(missing) == 1 else "are"
        text = f"{_ranges(present)} of {size}" + (f"; {_ranges(missing)} {are} missing" if missing else "")
        rows.append([program, size, len(present), len(missing), text])
    return pd.DataFrame(rows, columns=_PRESENCE).astype({"program": "str", "text": "str"})


def _ranges(numbers: Sequence[int]) -> str:
    starts = [number for number in numbers if number - 1 not in set(numbers)]
    ends = [number for number in numbers if number + 1 not in set(numbers)]
    parts = [f"{start}" if start == end else f"{start}–{end}" for start, end in zip(starts, ends, strict=True)]
    return f"rank{'s' if len(numbers) != 1 else ''} {', '.join(parts)}"


@memoize
def matched_iterations(run: Run) -> pd.DataFrame:
    """Return the iterations that every rank of a program has timed.

    Columns: program; iteration, its index in the program from 0, with warm-up; case; rank; own_iteration, its index in
    the table iterations. Iterations are matched by order. The sequence numbers of their collectives must agree:
    `mismatches` returns the programs in which they do not.
    """
    cases = rank_cases(run)
    walls = run.iterations[["case", "iteration"]].drop_duplicates()
    rows = walls.merge(cases[["program", "case", "rank", "num_warmup_iterations"]], on="case")
    rows = rows.rename(columns={"iteration": "own_iteration"})
    rows["iteration"] = rows["own_iteration"] + rows["num_warmup_iterations"].astype("int64")
    num_ranks = rows["program"].map(cases.groupby("program")["rank"].nunique())
    everywhere = rows.groupby(["program", "iteration"])["rank"].transform("nunique") == num_ranks
    return rows.loc[everywhere, _MATCHED].reset_index(drop=True)


@memoize
def rank_collectives(run: Run) -> pd.DataFrame:
    """Return the collectives of all ranks in matched iterations.

    Columns: program; iteration; rank; and those of the table collectives except for iteration. Collectives of groups
    that do not contain all ranks are left out: the record mixes groups of the same name.
    """
    cases = rank_cases(run)
    rows = run.table("collectives").rename(columns={"iteration": "own_iteration"})
    rows = rows.merge(matched_iterations(run), on=["case", "own_iteration"])
    size = rows["program"].map(cases.groupby("program")["world_size"].max()).astype("float64")
    return rows[rows["group_size"].isna() | (rows["group_size"] == size)].reset_index(drop=True)


def why_not_recorded(run: Run, program: str) -> str | None:
    """Return why the collectives of a program's ranks were not recorded; None if they were."""
    for case in rank_cases(run).query("program == @program")["case"]:
        if reason := pass_reason(run, case, "collectives"):
            return "collectives were not recorded: profile it again" if reason == "not measured" else reason
    return None


@memoize
def mismatches(run: Run) -> pd.DataFrame:
    """Return the programs whose ranks cannot be compared, because their iterations do not match.

    Columns: program; num_iterations that were matched; reason, as text.
    """
    rows = []
    collectives, matched = rank_collectives(run), matched_iterations(run)
    lossy = {entry.case for entry in run.entries if entry.passes.collectives.num_lost}
    for program, cases in rank_cases(run).groupby("program", sort=False):
        num_matched = matched.loc[matched["program"] == program, "iteration"].nunique()
        reason = None
        if cases["world_size"].nunique() > 1:
            sizes = ", ".join(map(str, sorted(cases["world_size"].unique())))
            reason = f"the ranks have different world sizes ({sizes}): start all of them in one job"
        elif not num_matched:
            reason = "no iteration was timed on every rank: give all ranks the same --skip and --iterations"
        elif not lossy & set(cases["case"]):
            reason = _differing(collectives[collectives["program"] == program], int(num_matched))
        if reason is not None:
            rows.append([program, num_matched, reason])
    return pd.DataFrame(rows, columns=["program", "num_iterations", "reason"]).astype({"program": "str"})


def _differing(collectives: pd.DataFrame, num_matched: int) -> str | None:
    """Return why iterations of the same index are not the same iteration on each rank; None if they are."""
    if collectives.empty:
        return None
    called = collectives.assign(number=collectives["group"] + " " + collectives["sequence"].astype("str"))
    sets = called.groupby(["iteration", "rank"])["number"].agg(frozenset).unstack("rank")
    differing = int(((sets.nunique(axis=1) > 1) | sets.isna().any(axis=1)).sum())
    if not differing:
        return None
    return (f"in {differing} of {num_matched} iterations the ranks called different collectives: they do not run the "
            "same iterations")
