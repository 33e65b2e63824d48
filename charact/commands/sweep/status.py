"""`charact sweep status`: the states of a sweep's cases."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from charact.commands._shared.print_table import print_table
from charact.core.output import show
from charact.sweeps.directory import SweepDirectory
from charact.sweeps.progress import CaseStatus, counts, expected_times, remaining_s, statuses
from charact.views.tables import format as fmt

_MAX_ROWS = 40
"""Maximum number of rows on a terminal; the JSON has all."""


def show_status(path: Path, *, as_json: bool) -> int:
    """Print the states of the cases; return the exit status."""
    directory = SweepDirectory(path)
    definition = directory.definition()
    found = statuses(directory, definition.cases)
    if as_json:
        content = {"name": definition.name, "counts": counts(found), "remaining_s": remaining_s(found),
                   "cases": [_entry(one) for one in found]}
        show(*json.dumps(content, indent=2).split("\n"))
        return 0
    # What needs attention comes first.
    order = ["running", "failed", "killed", "waiting", "ok"]
    shown = sorted(found, key=lambda one: order.index(one.state))
    print_table(f"{definition.name}: {len(found):,} cases", ["case", "state", "took"], rows_of(shown[:_MAX_ROWS]))
    if len(shown) > _MAX_ROWS:
        show(f"{len(shown) - _MAX_ROWS:,} more cases: --json lists all")
    show(*summary(found))
    return 0


def rows_of(found: Sequence[CaseStatus]) -> list[list[str]]:
    """Return the cells of a table of cases: label, state with its reason, wall time of the last attempt."""
    return [[one.case.label, one.state + (f": {one.outcome.reason}" if one.outcome and one.outcome.reason else ""),
             fmt.duration(one.outcome.seconds) if one.outcome else "–"] for one in found]


def plan_rows(found: Sequence[CaseStatus]) -> list[list[str]]:
    """Return the cells of a table of what a sweep would run: `rows_of`, and the expected time of cases to run."""
    times = expected_times(found)
    return [[*row, "" if one.is_done else f"about {fmt.duration(times[one.case])}" if one.case in times else "–"]
            for one, row in zip(found, rows_of(found), strict=True)]


def plan_summary(found: Sequence[CaseStatus]) -> list[str]:
    """Return the summary of a sweep, with the sum of the times of the cases that are done."""
    spent_s = sum(one.outcome.seconds for one in found if one.is_done and one.outcome is not None)
    return [f"{line}; {fmt.duration(spent_s)} spent" if spent_s else line for line in summary(found)]


def summary(found: Sequence[CaseStatus]) -> list[str]:
    """Return a line with the number of cases in each state, and the expected time of the rest."""
    words = [f"{number:,} {state}" for state, number in counts(found).items() if number]
    return [f"{', '.join(words)}{expected(remaining_s(found))}"]


def expected(seconds: float | None) -> str:
    """Return the expected time of the rest in words; empty if it is not known, or nothing is left."""
    return f"; about {fmt.duration(seconds)} left" if seconds else ""


def _entry(one: CaseStatus) -> dict[str, Any]:
    outcome = one.outcome
    return {"id": one.case.id, "command": one.case.command, "options": dict(one.case.options),
            "repeat": one.case.repeat, "state": one.state, "run": outcome.run if outcome else None,
            "reason": outcome.reason if outcome else None, "seconds": outcome.seconds if outcome else None,
            "host": outcome.host if outcome else None, "attempts": outcome.attempts if outcome else 0}
