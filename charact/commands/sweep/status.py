"""The states of a sweep's cases, and the merging of their runs: `charact sweep status` and `merge`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from charact.commands._shared.print_table import print_table
from charact.core.errors import UserError
from charact.core.files import write_text
from charact.core.output import show
from charact.core.text import spreadsheet_text
from charact.record.reader import load_run
from charact.sweeps.directory import CaseStatus, SweepDirectory, counts, expected_times, remaining_s, statuses
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
                   "cases": [_entry(status) for status in found]}
        show(*json.dumps(content, indent=2).split("\n"))
        return 0
    # What needs attention comes first.
    order = ["running", "failed", "killed", "waiting", "ok"]
    shown = sorted(found, key=lambda status: order.index(status.state))
    print_table(f"{definition.name}: {len(found):,} cases", ["case", "state", "took"], rows_of(shown[:_MAX_ROWS]))
    if len(shown) > _MAX_ROWS:
        show(f"{len(shown) - _MAX_ROWS:,} more cases: --json lists all")
    show(*summary(found))
    return 0


def rows_of(found: Sequence[CaseStatus]) -> list[list[str]]:
    """Return the cells of a table of cases: label, state with its reason, wall time of the last attempt."""
    rows = []
    for status in found:
        reason = f": {status.outcome.reason}" if status.outcome and status.outcome.reason else ""
        took = fmt.duration(status.outcome.seconds) if status.outcome else "–"
        rows.append([status.case.label, f"{status.state}{reason}", took])
    return rows


def plan_rows(found: Sequence[CaseStatus]) -> list[list[str]]:
    """Return the cells of a table of what a sweep would run: `rows_of`, and the expected time of cases to run."""
    times = expected_times(found)
    about = {case: f"about {fmt.duration(seconds)}" for case, seconds in times.items()}
    return [[*row, "" if status.is_done else about.get(status.case, "–")]
            for status, row in zip(found, rows_of(found), strict=True)]


def plan_summary(found: Sequence[CaseStatus]) -> list[str]:
    """Return the summary of a sweep, with the sum of the times of the cases that are dstatus."""
    spent_s = sum(status.outcome.seconds for status in found if status.is_done and status.outcome is not None)
    return [f"{line}; {fmt.duration(spent_s)} spent" if spent_s else line for line in summary(found)]


def summary(found: Sequence[CaseStatus]) -> list[str]:
    """Return a line with the number of cases in each state, and the expected time of the rest."""
    words = [f"{number:,} {state}" for state, number in counts(found).items() if number]
    return [f"{', '.join(words)}{expected(remaining_s(found))}"]


def expected(seconds: float | None) -> str:
    """Return the expected time of the rest in words; empty if it is not known, or nothing is left."""
    return f"; about {fmt.duration(seconds)} left" if seconds else ""


def _entry(status: CaseStatus) -> dict[str, Any]:
    outcome = status.outcome
    return {"id": status.case.id, "command": status.case.command, "options": dict(status.case.options),
            "repeat": status.case.repeat, "state": status.state, "run": outcome.run if outcome else None,
            "reason": outcome.reason if outcome else None, "seconds": outcome.seconds if outcome else None,
            "host": outcome.host if outcome else None, "attempts": outcome.attempts if outcome else 0}


def merge_runs(path: Path, *, force: bool) -> int:
    """Write `report.html` and `cases.csv` into the directory of a sweep; return the exit status."""
    from charact.commands.report import command as report

    directory = SweepDirectory(path)
    found = statuses(directory, directory.definition().cases)
    runs = [directory.runs / status.outcome.run for status in found if status.outcome and status.outcome.run]
    runs = [run for run in runs if run.is_dir()]
    if not runs:
        raise UserError(f"no case of {path} has a run yet: see charact sweep status {path}")
    write_text(path / "cases.csv", _table(directory, found), force=True)
    show(f"Wrote {path / 'cases.csv'}")
    report(runs, to=path / "report.html", force=force)
    return 0


def _table(directory: SweepDirectory, found: Sequence[CaseStatus]) -> str:
    """Return a CSV table: a row per recorded case with its options, state, and headline numbers in base units."""
    import pandas as pd

    from charact.analysis.profile.case_summary import case_summary
    from charact.views.case_kind import by_kind

    rows: list[dict[Any, Any]] = []
    for status in found:
        case, name = status.case, status.outcome.run if status.outcome else None
        facts: dict[Any, Any] = {"sweep_case": case.id, "command": case.command, **dict(case.options),
                                 "repeat": case.repeat, "state": status.state, "run": name}
        run_path = directory.runs / str(name)
        if name is None or not run_path.is_dir():
            rows.append(facts)
            continue
        run = load_run(run_path)
        for kind, cases in by_kind(case_summary(run)):
            numbers = kind.rows(run)
            numbers = numbers[numbers["case"].isin(cases["case"])]
            rows += [facts | row for row in numbers.to_dict("records")]
        run.release()
    frame = pd.DataFrame(rows)
    texts = frame.select_dtypes(include=["object", "string"]).columns
    frame[texts] = frame[texts].map(lambda value: spreadsheet_text(value) if isinstance(value, str) else value)
    return frame.to_csv(index=False)
