"""Records prepared for display: texts without control characters or secrets, optionally without the owner's names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from charact.core.errors import UserError
from charact.core.text import label, labels
from charact.record import redaction
from charact.record.reader import Run
from charact.record.schema import TABLES

_PRESENTABLE = "presentable"

Change = Callable[[str, Sequence[str]], Sequence[str]]
"""Function that replaces each of a column's distinct texts."""


@dataclass
class _ChangedRun(Run):
    """A run whose tables are converted when they are first read."""

    of: Run = field(kw_only=True, repr=False)
    change: Change = field(kw_only=True, repr=False)
    shown: dict[str, tuple[pd.DataFrame, pd.DataFrame]] = field(default_factory=dict, repr=False)
    """Tables of the record, each with its converted copy."""

    def table(self, name: str) -> pd.DataFrame:
        """Return a table of the record with its texts replaced."""
        rows = self.of.table(name)
        if name not in self.shown or self.shown[name][0] is not rows:
            columns = {}
            for column in (column.name for column in TABLES[name] if column.type == "string"):
                texts = list(rows[column].dropna().unique())
                others = list(self.change(column, texts))
                if texts != others:
                    columns[column] = rows[column].map(dict(zip(texts, others, strict=True)), na_action="ignore")
            self.shown[name] = rows, rows.assign(**columns) if columns else rows
        return self.shown[name][1]

    def trace(self, case: str) -> Path | None:
        """Return the path of a case's trace, which has the case's recorded name; None if the run has none."""
        position = [entry["case"] for entry in self.manifest["cases"]].index(case)
        return self.of.trace(self.of.manifest["cases"][position]["case"])

    def texts(self, column: str, texts: Sequence[str]) -> list[str]:
        """Return texts of a trace, changed like those of a column."""
        return list(self.change(column, self.of.texts(column, texts)))

    def release(self) -> None:
        """Free the tables, including those of the original record."""
        super().release()
        self.shown.clear()
        self.of.release()


def presentable(run: Run) -> Run:
    """Return the record with control characters in its texts replaced, as by `label`.

    The record on disk and exported tables keep their texts. The same object is returned while the manifest is
    unchanged, so that analyses of it are computed once.
    """
    if isinstance(run, _ChangedRun) and run.change is _labels:
        return run
    manifest = labels(run.manifest)
    shown: Run | None = run.found.get(_PRESENTABLE)
    if shown is None or shown.manifest != manifest:
        cases = [case["case"] for case in manifest["cases"]]
        if len(set(cases)) < len(cases):
            raise UserError(f"{run.path} has cases whose names differ in control characters only: "
                            "record them again under other names")
        shown = run.found[_PRESENTABLE] = _ChangedRun(run.path, manifest, run.partial, of=run, change=_labels)
    return shown


def redacted(run: Run, *, anonymous: bool = False) -> Run:
    """Return the record without secrets, which earlier versions recorded, and without names of its owner on request."""
    def change(column: str, texts: Sequence[str]) -> Sequence[str]:
        if anonymous:
            return redaction.anonymous_texts(texts, column, run.manifest)
        return redaction.redacted_column(column, texts)

    manifest = redaction.anonymous(run.manifest) if anonymous else redaction.redacted(run.manifest)
    return _ChangedRun(run.path, manifest, run.partial, of=run, change=change)


def _labels(_column: str, texts: Sequence[str]) -> list[str]:
    return [label(text) for text in texts]
