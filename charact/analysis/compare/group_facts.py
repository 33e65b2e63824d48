"""Description of each group in a comparison: machine, software, failed cases."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.common.machine_names import machine_name
from charact.analysis.compare.environment_diff import listed
from charact.analysis.compare.run_groups import Side


def side_facts(sides: Sequence[Side]) -> pd.DataFrame:
    """Return one row for each group.

    Columns: side; machine, its devices and host name, null if not recorded; num_runs; num_cases of all runs; torch, the
    versions of PyTorch, null if not recorded; origin, the run's identifier, the number of runs, or the source of a
    published table.
    """
    rows = [
        [side.label, _joined(machine_name(run) for run in side.runs), len(side.runs),
         sum(len(run.manifest["cases"]) for run in side.runs),
         _joined(run.manifest.get("software", {}).get("torch") for run in side.runs), _origin(side)]
        for side in sides
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["side", "machine", "num_runs", "num_cases", "torch", "origin"])


def failed_cases(sides: Sequence[Side]) -> pd.DataFrame:
    """Return cases that did not end well, matched or not. Columns: side; case; status; reason."""
    rows = [
        [side.label, entry["case"], entry["status"], entry.get("reason")]
        for side in sides for run in side.runs for entry in run.manifest["cases"] if entry["status"] != "ok"
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["side", "case", "status", "reason"])


def published_notes(sides: Sequence[Side]) -> pd.DataFrame:
    """Return the notes of groups that are published tables. Columns: side; note."""
    rows = [[side.label, _note(run.manifest["reference"])]
            for side in sides for run in side.runs if "reference" in run.manifest]  # fmt: skip
    return pd.DataFrame(rows, columns=["side", "note"])


def _note(published: dict[str, Any]) -> str:
    return ". ".join([f"Source: {published['source']}", f"Not stated there: {published['unstated']}",
                      *published["notes"]])  # fmt: skip


def _origin(side: Side) -> str:
    first = side.runs[0]
    if len(side.runs) > 1:
        return f"{len(side.runs)} runs, {min(run.run_id for run in side.runs)} and later"
    return "published table" if "reference" in first.manifest else first.run_id


def _joined(names: Any) -> str | None:
    return listed(list(dict.fromkeys(name for name in names if name))) or None
