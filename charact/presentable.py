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

    def table(self, name: str) -> pd.DataFrame:
        """A table of the record, its texts made presentable."""
        if name not in self._tables:
            self._tables[name] = _labelled(name, self.of.table(name))
        return self._tables[name]


def presentable(run: Run) -> Run:
    """The same record with a visible character in place of each control character in its texts, as `label` gives it.

    The record on disk and its exports keep their texts. Asked again, it gives the same object, so that what analyses
    have found in it is found once.

    Raises:
        UserError: two cases could not be told apart in it.
    """
    if isinstance(run, _PresentableRun):
        return run
    if _FOUND not in run.found:
        shown = _PresentableRun(run.path, labels(run.manifest), run.partial, of=run)
        cases = [case["case"] for case in shown.manifest["cases"]]
        if len(set(cases)) < len(cases):
            raise UserError(f"{run.path} has cases whose names differ in control characters only: rename them")
        run.found[_FOUND] = shown
    found: Run = run.found[_FOUND]
    return found


def _labelled(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    changed = {}
    for column in (column.name for column in TABLES[name] if column.type == "string"):
        shown = {text: label(text) for text in rows[column].dropna().unique()}
        if any(text != other for text, other in shown.items()):
            changed[column] = rows[column].map(shown, na_action="ignore")
    return rows.assign(**changed) if changed else rows
