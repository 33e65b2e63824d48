"""Status, reason and cost of each pass over each case, from the manifest."""

from dataclasses import dataclass

import pandas as pd

from charact.analysis.common.script_attribution import is_watched
from charact.record.reader import Run

_STOP_RULE = [
    "num_warmup_iterations", "warmup_ended_by", "num_iterations", "ended_by", "precision_target_frac", "interval_frac",
    "compile_s",
]  # fmt: skip


_ASKED_FOR = ("operators", "memory", "inspection", "counters")
"""Passes of a watched program that can be asked for."""


def pass_reason(run: Run, case: str, name: str) -> str | None:
    """Return why a case has no data from a pass; None if the pass ended well.

    The passes of a watched program measure iterations of one case only; the reason of the other cases names that case.
    """
    entry, measured = run.entry(case), run.entries_with(name)
    if name in entry.passes:
        facts = entry.passes[name]
        return None if facts.status == "ok" else facts.reason or f"pass {facts.status}"
    if is_watched(run) and measured:
        return pass_reason(run, measured[0].case, name) or f"taken over {measured[0].case} only"
    if is_watched(run) and run.options.iterations is not None and not run.options.passes:
        return "--iterations alone measures times: add --passes operators,memory"
    if is_watched(run) and name in _ASKED_FOR:
        return f"not asked for: charact run --passes {name}"
    return entry.reason or "not measured"


def passes_taken(run: Run) -> set[str]:
    """Return the passes that any case has run, with any outcome."""
    return {name for entry in run.entries for name in entry.passes}


def was_asked_for(run: Run, name: str) -> bool:
    """Return whether a pass was requested; if no case reached any pass, every pass counts as requested."""
    taken = passes_taken(run)
    return not taken or name in taken


def pass_outcomes(run: Run) -> pd.DataFrame:
    """Return how each pass over each case ended.

    Columns: case; pass; status (one of schema.PASS_STATUSES); reason, null if the pass ended well.
    """
    rows = [[entry.case, name, facts.status, facts.reason]
            for entry in run.entries for name, facts in entry.passes.items()]
    return pd.DataFrame(rows, columns=["case", "pass", "status", "reason"])


@dataclass(frozen=True)
class MissedPrecision:
    """A confidence interval wider than requested: the target of its half-width (over the median), and the cause."""

    target_frac: float
    ended_by: str


def missed_precision(run: Run, case: str) -> MissedPrecision | None:
    """Return the precision that a case did not reach; None if it reached it, or if either is unknown."""
    timing = run.entry(case).passes.timing
    reached, target = timing.interval_frac, timing.precision_target_frac
    if reached is None or target is None or reached <= target:
        return None
    return MissedPrecision(target, str(timing.ended_by))


def stop_rules(run: Run) -> pd.DataFrame:
    """Return the length of each case, what ended it, and the overhead of the profiler.

    Columns: case; num_warmup_iterations and warmup_ended_by; num_iterations, ended_by ('precision': the 95 % interval
    of the median was within precision_target_frac; else the limit that was hit) and interval_frac, the interval's
    half-width over the median; compile_s, the time to compile the model (null without compilation);
    overhead_ratio, iteration time under the profiler over that of the timing pass.
    """
    rows = [[entry.case, *(getattr(entry.passes.timing, fact) for fact in _STOP_RULE),
             entry.passes.operators.overhead_ratio] for entry in run.entries]
    return pd.DataFrame(rows, columns=["case", *_STOP_RULE, "overhead_ratio"])
