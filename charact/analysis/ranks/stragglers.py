"""Stragglers: which rank the others wait for, in which phase it is slower, and what that costs."""

from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.ranks.matching import mismatches, rank_cases, why_not_recorded
from charact.analysis.ranks.waiting import rank_phase_times, waits
from charact.core.statistics import median_interval
from charact.core.units import quantity, share
from charact.record.reader import Run

WAITING_FRAC = 0.1
"""Share of the iteration from which waiting for other ranks is reported as a straggler or an imbalance."""
ROTATING_FRAC = 0.2
"""The same for rotating stragglers: waiting for a core of a busy machine looks the same."""
_ONE_RANK_FRAC = 0.6
"""Share of the waiting that a straggler causes."""
_LASTING_FRAC = 0.5
"""Share of the waiting that differences between the ranks' work must explain."""
MIN_ITERATIONS = 5

STRAGGLER, IMBALANCE, ROTATING, BALANCED = "straggler", "imbalance", "rotating stragglers", "balanced"
_NUMBERS = ["extra_s", "wait_s", "share_frac", "threshold_frac"]
_COLUMNS = ["program", "verdict", "rank", "phase", *_NUMBERS, "num_iterations", "evidence", "advice", "reason"]
_NO_DEVICE = ("waits of ranks on a GPU are not measured: import traces of all ranks with charact import")
_NO_EXCHANGE = "the ranks exchanged nothing in the iterations that were timed on all of them"


@memoize
def stragglers(run: Run) -> pd.DataFrame:
    """Return for each program of several ranks whether they wait for one of them.

    Columns: program; verdict ('straggler', 'imbalance', 'rotating stragglers', 'balanced', or null); rank, the
    straggler or the rank with the most work; phase in which it takes longer, or that differs most between ranks;
    extra_s, how much: over the median rank, of an imbalance over the rank with the least work; wait_s, mean wait of
    the other ranks per iteration (median over the iterations); share_frac of the median iteration; threshold_frac;
    num_iterations that were compared; evidence, advice, and reason, why there is no verdict.

    A straggler causes 60 % of the waiting or more, and its additional work explains half of that; the 95 % interval of
    the waiting that it causes is above the threshold. It is an imbalance if the 95 % interval of the difference between
    most and least work is above half of the waiting. Stragglers rotate if the ranks wait for 20 % of the
    iteration or more, and differences in one phase explain half of that. On a machine whose cores are taken by other
    programs, the times of all ranks vary; they are balanced.
    """
    rows = []
    programs = rank_cases(run)["program"].unique()
    if len(programs):  # most runs have no ranks: tables without rows take time, too
        unmatched = mismatches(run).set_index("program")["reason"]
        times, waited = rank_phase_times(run), waits(run)
    for program in programs:
        of_program = times[times["program"] == program]
        num_iterations = of_program["iteration"].nunique()
        row: dict[str, Any] = {"program": program, "num_iterations": num_iterations}
        if program in unmatched.index:
            row["reason"] = unmatched[program]
        elif num_iterations < MIN_ITERATIONS:
            row["reason"] = f"{num_iterations} iterations are too few to compare ranks: {MIN_ITERATIONS} are needed"
        elif (of_waits := waited[waited["program"] == program]).empty:
            row["reason"] = _why_no_waits(run, program)
        else:
            row |= _judged(_Program(of_program, of_waits))
        rows.append(row)
    return pd.DataFrame({
        name: pd.Series([row.get(name) for row in rows], dtype="float64" if name in _NUMBERS else "object")
        for name in _COLUMNS
    })


def _why_no_waits(run: Run, program: str) -> str:
    entries = [run.entry(case) for case in rank_cases(run).query("program == @program")["case"]]
    if any(entry.device != "cpu" for entry in entries):
        return _NO_DEVICE
    is_of_profile = any(entry.parallel for entry in entries)
    return (why_not_recorded(run, program) if is_of_profile else None) or _NO_EXCHANGE


def rank_verdicts(run: Run) -> pd.DataFrame:
    """Return `stragglers` for each case of a rank.

    Columns: case, its rank and world_size; straggler, the rank that the verdict names; and the other columns of
    `stragglers`.
    """
    verdicts = stragglers(run).rename(columns={"rank": "straggler"})
    return rank_cases(run)[["program", "case", "rank", "world_size"]].merge(verdicts, on="program")


class _Program:
    """Times of the ranks of one program, as medians over its iterations."""

    def __init__(self, times: pd.DataFrame, waited: pd.DataFrame) -> None:
        walls_s = times.groupby(["iteration", "rank"])["time_s"].sum()
        self.median_s = float(walls_s.median())
        work = times[times["phase"] != "communication"]
        self.works_s = work.groupby(["iteration", "rank"])["time_s"].sum().unstack("rank")
        """Time that each rank does not wait, by iteration."""
        self.work_s = self.works_s.median()
        by_phase = work.pivot_table("time_s", ["iteration", "rank"], "phase", aggfunc="sum", fill_value=0.0)
        iterations = by_phase.groupby("iteration")
        self.range_s: Any = (iterations.max() - iterations.median()).mean()
        """How much longer a phase takes on its slowest rank than on the median one, in the same iteration."""
        self.phases_s = by_phase.groupby("rank").median()
        """Time of each phase by rank."""
        self.ranks = [int(rank) for rank in self.phases_s.index]
        self.waited = waited
        num_others = max(len(self.ranks) - 1, 1)
        caused = waited.groupby(["iteration", "last_rank"])["late_s"].sum().unstack("last_rank") / num_others
        self.caused_s = caused.reindex(columns=self.ranks).fillna(0.0)
        """Mean waiting of the other ranks that each rank causes, by iteration."""

    def extra_s(self, rank: int) -> Any:
        """Return how much longer each phase of a rank takes than the median of the other ranks, by phase."""
        return self.phases_s.loc[rank] - self.phases_s.drop(index=rank).median()


def _judged(program: _Program) -> dict[str, Any]:
    waiting_s = float(program.caused_s.sum(axis=1).median())
    waiting_frac = waiting_s / program.median_s
    of_rank = program.caused_s.median()
    worst = int(_largest(of_rank))
    row: dict[str, Any] = {"threshold_frac": WAITING_FRAC, "wait_s": waiting_s, "share_frac": waiting_frac}
    if waiting_frac < WAITING_FRAC:
        return row | {"verdict": BALANCED, "evidence": (
            f"the ranks wait for each other for {share(waiting_frac)} of the iteration; from {share(WAITING_FRAC)} on, "
            "this would be a straggler or an imbalance")}
    extra_s = float(program.work_s[worst] - program.work_s.drop(worst).median())
    is_one = (of_rank[worst] >= _ONE_RANK_FRAC * waiting_s
              and _low(program.caused_s[worst]) >= WAITING_FRAC * program.median_s)
    if is_one and extra_s >= _LASTING_FRAC * of_rank[worst]:
        return row | _straggler(program, worst, float(of_rank[worst]))
    most, least = int(_largest(program.work_s)), int(_largest(-program.work_s))
    if _low(program.works_s[most] - program.works_s[least]) >= _LASTING_FRAC * waiting_s:
        return row | _imbalance(program, most, least, waiting_s)
    if waiting_frac < ROTATING_FRAC or program.range_s.max() < _LASTING_FRAC * waiting_s:
        return row | {"verdict": BALANCED, "evidence": (
            f"the ranks wait for each other for {share(waiting_frac)} of the iteration, but no rank and no phase "
            f"explains half of it; rotating stragglers are reported from {share(ROTATING_FRAC)} on")}
    return row | {"threshold_frac": ROTATING_FRAC} | _rotating(program, waiting_s)


def _straggler(program: _Program, rank: int, wait_s: float) -> dict[str, Any]:
    extra = program.extra_s(rank)
    phase = str(_largest(extra))
    frac = wait_s / program.median_s
    waited, where = program.waited[program.waited["last_rank"] == rank].dropna(subset=["operation"]), ""
    if len(waited):
        inside, operation = _largest(waited.groupby(["phase", "operation"])["late_s"].sum())
        where = f", most at the {operation} {'between phases' if inside == 'communication' else f'in {inside}'}"
    evidence = (f"rank {rank}’s {_named(phase)} takes {quantity(extra[phase], 's')} longer than that of the other "
                f"ranks; the others wait {quantity(wait_s, 's')} ({share(frac)} of the iteration) for it{where}")
    advice = (f"speed up loading on rank {rank}: its storage, its loader processes, and the sizes of its samples"
              if phase == "data" else
              f"find out what differs on rank {rank}: its machine (clock, other programs), its share of the work, and "
              "code that only this rank runs")
    return {"verdict": STRAGGLER, "rank": rank, "phase": phase, "extra_s": float(extra[phase]), "wait_s": wait_s,
            "share_frac": frac, "evidence": evidence, "advice": advice}


def _imbalance(program: _Program, most: int, least: int, waiting_s: float) -> dict[str, Any]:
    spread_s = float(program.work_s[most] - program.work_s[least])
    extra: Any = program.phases_s.loc[most] - program.phases_s.loc[least]
    phase = str(_largest(extra))
    evidence = (f"rank {most} works {quantity(spread_s, 's')} longer in each iteration than rank {least}, most of it "
                f"in {_named(phase)}; the ranks wait {quantity(waiting_s, 's')} for each other: "
                f"{share(waiting_s / program.median_s)} of the iteration")
    return {"verdict": IMBALANCE, "rank": most, "phase": phase, "extra_s": float(extra[phase]), "evidence": evidence,
            "advice": "give every rank the same work: equal numbers of samples, of similar sizes"}


def _rotating(program: _Program, waiting_s: float) -> dict[str, Any]:
    last = program.caused_s.idxmax(axis=1).value_counts(normalize=True)
    counts = ", ".join(f"rank {rank} in {share(float(frac))}" for rank, frac in last.sort_index().items())
    phase = str(_largest(program.range_s))
    evidence = (f"the last rank changes from iteration to iteration ({counts}), and differs most in {_named(phase)}; "
                f"the ranks wait {quantity(waiting_s, 's')} for each other: {share(waiting_s / program.median_s)} of "
                "the iteration")
    advice = ("make batches equally long to load (more loader processes, a longer queue)" if phase == "data" else
              "make the work of an iteration equal on all ranks, such as by sorting samples by length")
    return {"verdict": ROTATING, "phase": phase, "extra_s": float(program.range_s[phase]), "evidence": evidence,
            "advice": advice}


def _largest(values: Any) -> Any:
    return values.idxmax()


def _low(values: Any) -> float:
    """Return the lower end of the 95 % interval of the median; the median of fewer than 6 values."""
    interval = median_interval(values.tolist())
    return float(values.median()) if interval is None else interval[0]


def _named(phase: str) -> str:
    return "time outside of all phases" if phase == "other" else phase
