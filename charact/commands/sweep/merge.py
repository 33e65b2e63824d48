"""`charact sweep merge`: one report and one table of a sweep's finished cases."""

from pathlib import Path
from typing import Any

import pandas as pd

from charact.analysis.profile.case_summary import case_summary
from charact.commands.report import command as report
from charact.core.errors import UserError
from charact.core.files import write_text
from charact.core.output import show
from charact.core.text import spreadsheet_text
from charact.record.reader import load_run
from charact.sweeps.directory import SweepDirectory
from charact.sweeps.progress import statuses
from charact.views.case_kind import by_kind


def merge_runs(path: Path, *, force: bool) -> int:
    """Write `report.html` and `cases.csv` into the directory of a sweep; return the exit status."""
    directory = SweepDirectory(path)
    found = statuses(directory, directory.definition().cases)
    runs = [directory.runs / one.outcome.run for one in found if one.outcome is not None and one.outcome.run]
    runs = [run for run in runs if run.is_dir()]
    if not runs:
        raise UserError(f"no case of {path} has a run yet: see charact sweep status {path}")
    write_text(path / "cases.csv", _table(directory), force=True)
    show(f"Wrote {path / 'cases.csv'}")
    report(runs, to=path / "report.html", force=force)
    return 0


def _table(directory: SweepDirectory) -> str:
    """Return a CSV table: a row per recorded case with its options, state, and headline numbers in base units."""
    rows: list[dict[Any, Any]] = []
    for one in statuses(directory, directory.definition().cases):
        facts: dict[Any, Any] = {"sweep_case": one.case.id, "command": one.case.command, **dict(one.case.options),
                 "repeat": one.case.repeat, "state": one.state, "run": one.outcome.run if one.outcome else None}
        run_path = directory.runs / str(facts["run"])
        if one.outcome is None or one.outcome.run is None or not run_path.is_dir():
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
