"""A record as views show it: its texts without control characters, each on one line."""

from dataclasses import dataclass, field

import pandas as pd

from charact.errors import UserError
from charact.schema import TABLES
from charact.store import Run
from charact.text import label, labels

_FOUND = "presentable"


@dataclass
class _PresentableRun(Run):
    of: Run = field(kw_only=True, repr=False)
    shown: dict[str, tuple[pd.DataFrame, pd.DataFrame]] = field(default_factory=dict, repr=False)
    """Tables of the record, each with what is shown of it."""

    def table(self, name: str) -> pd.DataFrame:
        """A table of the record, its texts made presentable."""
        rows = self.of.table(name)
        if name not in self.shown or self.shown[name][0] is not rows:
            self.shown[name] = rows, _labelled(name, rows)
        return self.shown[name][1]


def presentable(run: Run) -> Run:
    """The same record with a visible character in place of each control character in its texts, as `label` gives it.

    The record on disk and its exports keep their texts. While the manifest stays as it is, the same object is
    returned, so that analyses of it are computed once.

    Raises:
        UserError: two cases could not be told apart in it.
    """
    if isinstance(run, _PresentableRun):
        return run
    manifest = labels(run.manifest)
    found: Run | None = run.found.get(_FOUND)
    if found is None or found.manifest != manifest:
        cases = [case["case"] for case in manifest["cases"]]
        if len(set(cases)) < len(cases):
            raise UserError(f"{run.path} has cases whose names differ in control characters only: rename them")
        found = run.found[_FOUND] = _PresentableRun(run.path, manifest, run.partial, of=run)
    return found


def _labelled(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    changed = {}
    for column in (column.name for column in TABLES[name] if column.type == "string"):
        shown = {text: label(text) for text in rows[column].dropna().unique()}
        if any(text != other for text, other in shown.items()):
            changed[column] = rows[column].map(shown, na_action="ignore")
    return rows.assign(**changed) if changed else rows
