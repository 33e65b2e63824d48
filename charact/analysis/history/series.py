"""The history of a metric of a case: a row a run, with the levels between change points."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pandas as pd

from charact.analysis.history.change_points import MIN_VALUES, levels
from charact.analysis.history.index import Index, RunFacts, change_points_of
from charact.core.errors import UserError
from charact.core.text import did_you_mean
from charact.record.runs import started

_COLUMNS = ["run", "started", "commit", "dirty", "machine", "value", "low", "high", "reason", "level", "change_frac",
            "differs"]
_NUMBERS = ("value", "low", "high", "level", "change_frac")
_COMMIT_DIGITS = 10
_NUM_NAMED = 5


def case_counts(index: Index) -> dict[str, int]:
    """Return the number of runs with each case, the most frequent first."""
    return dict(Counter(case for run in index.runs.values() for case in run.cases).most_common())


def chosen_case(index: Index, case: str | None) -> str:
    """Return the case of this name; without a name, the only case of the runs."""
    counts = case_counts(index)
    if not counts:
        raise UserError("no run that can be read has a case: name a directory of runs, such as runs")
    listed = ", ".join(list(counts)[:_NUM_NAMED]) + (f" and {len(counts) - _NUM_NAMED} more"
                                                      if len(counts) > _NUM_NAMED else "")
    if case is None and len(counts) > 1:
        raise UserError(f"the runs have several cases: name one with --case: {listed}")
    if case is not None and case not in counts:
        raise UserError(f"no run has the case '{case}': {did_you_mean(case, counts, listed)}")
    return case if case is not None else next(iter(counts))


def metric_counts(index: Index, case: str) -> dict[str, int]:
    """Return the number of runs with a value of each metric of a case, the most frequent first."""
    return dict(Counter(metric for run in index.runs.values() if case in run.cases
                        for metric in run.cases[case].metrics).most_common())


def history(index: Index, case: str, metric: str) -> pd.DataFrame:
    """Return a row for each run with a case, the oldest first.

    Columns: run, its identifier; started, local time of the run, as text; commit, of the working directory (null if the
    record has none), and dirty, whether files had changed; machine; value, of the metric in its base unit (null with
    the reason); low and high, its 95 % interval over the iterations or epochs of that run (null with the reason);
    reason; level, the median of the values between two change points (null without a value); change_frac, the new level
    / the level before - 1 at a change point, null elsewhere; differs, the commit, torch and machine that differ from
    the run before with a value, as text (null at the first).

    *Error*: see `change_points.change_points`. Fewer than 10 values have one level.
    """
    runs = sorted((run for run in index.runs.values() if case in run.cases),
                  key=lambda run: (started(run.started), run.run))
    rows = [_row(run, case, metric) for run in runs]
    known = [(run, row) for run, row in zip(runs, rows, strict=True) if row["value"] is not None]
    values = [row["value"] for _, row in known]
    changes = change_points_of(index, values) if len(values) >= MIN_VALUES else []
    for (_, row), level in zip(known, levels(values, changes), strict=True):
        row["level"] = level
    for number, ((before, old), (run, new)) in enumerate(pairwise(known), 1):
        new["differs"] = _differences(before, run)
        if number in changes and old["level"]:
            new["change_frac"] = new["level"] / old["level"] - 1
    return pd.DataFrame(rows, columns=_COLUMNS).astype(dict.fromkeys(_NUMBERS, "float64"))


def _row(run: RunFacts, case: str, metric: str) -> dict[str, Any]:
    facts = run.cases[case]
    number = facts.metrics.get(metric)
    when = None if run.started is None else run.started[:16].replace("T", " ")
    commit = None if run.commit is None else run.commit[:_COMMIT_DIGITS]
    row = dict.fromkeys(_COLUMNS) | {"run": run.run, "started": when, "commit": commit, "dirty": run.dirty,
                                     "machine": run.machine}
    if number is not None:
        return row | {"value": number.value, "low": number.low, "high": number.high, "reason": number.reason}
    failed = f"{facts.status}: {facts.reason or 'no reason recorded'}"
    return row | {"reason": "not measured" if facts.status == "ok" else failed}


def _differences(before: RunFacts, run: RunFacts) -> str:
    """Return what differs between two runs: commit a1b2c3 → d4e5f6, torch 2.12.0 → 2.13.0."""
    texts = [{"commit": each.commit and each.commit[:_COMMIT_DIGITS], "torch": each.torch, "machine": each.machine}
             for each in (before, run)]
    changed = {name: [text[name] or "n/a" for text in texts] for name in texts[0]
               if getattr(before, name) != getattr(run, name)}
    return ", ".join(f"{name} {old} → {new}" for name, (old, new) in changed.items())
