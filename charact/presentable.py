"""A record as views show it: its texts without control characters or secrets, on request without its owner's names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pandas as pd

from charact import redaction
from charact.errors import UserError
from charact.schema import TABLES
from charact.store import Run
from charact.text import label, labels

_PRESENTABLE = "presentable"

Change = Callable[[str, Sequence[str]], Sequence[str]]
"""Returns what stands for each of a column's texts, which are different ones."""


@dataclass
class _ChangedRun(Run):
    """A run whose tables are changed when they are first asked for."""

    of: Run = field(kw_only=True, repr=False)
    change: Change = field(kw_only=True, repr=False)

    def table(self, name: str) -> pd.DataFrame:
        """A table of the record, its texts changed."""
        if name not in self._tables:
            self._tables[name] = _changed(name, self.of.table(name), self.change)
        return self._tables[name]


def presentable(run: Run) -> Run:
    """The same record with a visible character in place of each control character in its texts, as `label` gives it.

    The record on disk and its exports keep their texts. Asked again, it gives the same object, so that what analyses
    have found in it is found once.

    Raises:
        UserError: two cases could not be told apart in it.
    """
    if isinstance(run, _ChangedRun) and run.change is _labels:
        return run
    if _PRESENTABLE not in run.found:
        shown = _ChangedRun(run.path, labels(run.manifest), run.partial, of=run, change=_labels)
        cases = [case["case"] for case in shown.manifest["cases"]]
        if len(set(cases)) < len(cases):
            raise UserError(f"{run.path} has cases whose names differ in control characters only: rename them")
        run.found[_PRESENTABLE] = shown
    found: Run = run.found[_PRESENTABLE]
    return found


def redacted(run: Run, *, anonymous: bool = False) -> Run:
    """The same record without secrets, which earlier versions recorded.

    Args:
        run: the record.
        anonymous: leave out the names of the machine's owner, too.
    """
    def change(column: str, texts: Sequence[str]) -> Sequence[str]:
        if anonymous:
            return redaction.anonymous_texts(texts, column, run.manifest)
        return redaction.redacted_column(column, texts)

    manifest = redaction.anonymous(run.manifest) if anonymous else redaction.redacted(run.manifest)
    return _ChangedRun(run.path, manifest, run.partial, of=run, change=change)


def _labels(_column: str, texts: Sequence[str]) -> list[str]:
    return [label(text) for text in texts]


def _changed(name: str, rows: pd.DataFrame, change: Change) -> pd.DataFrame:
    columns = {}
    for column in (column.name for column in TABLES[name] if column.type == "string"):
        texts = list(rows[column].dropna().unique())
        others = list(change(column, texts))
        if texts != others:
            columns[column] = rows[column].map(dict(zip(texts, others, strict=True)), na_action="ignore")
    return rows.assign(**columns) if columns else rows
