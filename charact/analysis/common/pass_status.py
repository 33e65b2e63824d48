"""Status, reason and cost of each pass over each case, from the manifest."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from charact.analysis.common.script_attribution import is_watched
from charact.record.case_facts import pass_facts
from charact.record.reader import Run

_STOP_RULE = [
    "num_warmup_iterations", "warmup_ended_by", "num_iterations", "ended_by", "precision_target_frac", "interval_frac",
    "compile_s",
]  # fmt: skip


def pass_reason(run: Run, case: str, name: str) -> str | None:
    """Return why a case has no data from a pass; None if the pass ended well.

    The passes of a watched program measure iterations of one case only; the reason of the other cases names that case.
    """
    entry = next(entry for entry in run.manifest["cases"] if entry["case"] == case)
    facts = entry.get("passes", {}).get(name)
    if facts is None:
        taken = [other["case"] for other in run.manifest["cases"] if name in other.get("passes", {})]
        if not (is_watched(run) and taken):
            return entry.get("reason") or "not measured"
        return pass_reason(run, taken[0], name) or f"taken over {taken[0]} only"
    if facts["status"] == "ok":
        return None
    return str(facts.get("reason") or f"pass {facts['status']}")


def passes_taken(run: Run) -> set[str]:
    """Return the passes that any case has run, with any outcome."""
    return {name for entry in run.manifest["cases"] for name in entry.get("passes", {})}


def was_asked_for(run: Run, name: str) -> bool:
    """Return whether a pass was requested; if no case reached any pass, every pass counts as requested."""
    taken = passes_taken(run)
    return not taken or name in taken


def pass_outcomes(run: Run) -> pd.DataFrame:
    """Return how each pass over each case ended.

    Columns: case; pass; status (one of schema.PASS_STATUSES); reason, null if the pass ended well.
    """
    rows = [
        [entry["case"], name, facts["status"], facts.get("reason")]
        for entry in run.manifest["cases"]
        for name, facts in entry.get("passes", {}).items()
    ]
    return pd.DataFrame(rows, columns=["case", "pass", "status", "reason"])


@dataclass(frozen=True)
class MissedPrecision:
    """A confidence interval wider than requested: its half-width and the target (over the median), and the cause."""

    interval_frac: float
    target_frac: float
    ended_by: str


def missed_precision(run: Run, case: str) -> MissedPrecision | None:
    """Return how far a case that hit a limit is from the requested precision; None if it reached that precision."""
    entry = next(entry for entry in run.manifest["cases"] if entry["case"] == case)
    timing = pass_facts(entry, "timing")
    reached, target = timing.get("interval_frac"), timing.get("precision_target_frac")
    if reached is None or target is None or reached <= target:
        return None
    return MissedPrecision(reached, target, str(timing.get("ended_by")))


def stop_rules(run: Run) -> pd.DataFrame:
    """Return the length of each case, what ended it, and the overhead of the profiler.

    Columns: case; num_warmup_iterations and warmup_ended_by; num_iterations, ended_by ('precision': the 95 % interval
    of the median was within precision_target_frac; else the limit that was hit) and interval_frac, the interval's
    half-width over the median; compile_s, the time to compile the model (null without compilation);
    overhead_ratio, iteration time under the profiler over that of the timing pass.
    """
    rows: list[list[Any]] = []
    for entry in run.manifest["cases"]:
        passes = entry.get("passes", {})
        timing = passes.get("timing", {})
        overhead_ratio = passes.get("operators", {}).get("overhead_ratio")
        rows.append([entry["case"], *(timing.get(fact) for fact in _STOP_RULE), overhead_ratio])
    return pd.DataFrame(rows, columns=["case", *_STOP_RULE, "overhead_ratio"])
