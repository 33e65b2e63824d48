"""Export of a run's tables as CSV, JSON or Parquet, with the manifest and a description of the columns."""

import json
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from charact.analysis.compare import Group, metric_ratios, ratios
from charact.analysis.compare.pairs import JUDGEMENT
from charact.analysis.compare.turns import turn_decisions
from charact.analysis.summary import COLUMNS
from charact.analysis.summary import TABLE as SUMMARY
from charact.core.errors import UserError
from charact.core.files import writing
from charact.core.text import spreadsheet_text
from charact.record.reader import Run
from charact.record.redaction import redacted
from charact.record.schema import TABLES, Column
from charact.record.tables import arrow_schema

_EXPORTED: dict[str, Sequence[Column]] = {SUMMARY: COLUMNS, **TABLES}
"""Columns of every table that an export may have."""


def _typed(table: str, rows: pd.DataFrame) -> pd.DataFrame:
    return rows.astype({column.name: "Int64" for column in _EXPORTED[table] if column.type == "int64"})


def _write_csv(table: str, rows: pd.DataFrame, path: Path) -> None:
    texts = [column.name for column in _EXPORTED[table] if column.type == "string"]
    _without_formulas(_typed(table, rows), texts).to_csv(path, index=False)


def _without_formulas(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    return rows.assign(**{column: rows[column].map(spreadsheet_text, na_action="ignore") for column in columns})


def _write_json(table: str, rows: pd.DataFrame, path: Path) -> None:
    # pandas' own writer keeps 15 digits at most, too few to read the same number back.
    values = _typed(table, rows).astype(object)
    records = values.where(values.notna(), None).to_dict("records")
    path.write_text(json.dumps(records, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _write_parquet(table: str, rows: pd.DataFrame, path: Path) -> None:
    with pa.OSFile(os.fsencode(path), "wb") as file:  # Arrow accepts paths that are not UTF-8 only as bytes
        pq.write_table(pa.Table.from_pandas(rows, schema=arrow_schema(_EXPORTED[table]), preserve_index=False), file)


_DESCRIBED = ("name", "type", "description", "nullable", "allowed")
"""Descriptions of columns in `columns.json`."""

FORMATS: dict[str, Callable[[str, pd.DataFrame, Path], None]] = {
    "csv": _write_csv, "json": _write_json, "parquet": _write_parquet,
}  # fmt: skip


def comparison_csv(sides: Sequence[Group], levels: Sequence[str]) -> str:
    """Return a comparison as one CSV table in base units, with all digits.

    Columns: level, 'case' for metrics of whole cases, else one of `levels`; case; name, of the part, empty for whole
    cases; side; metric; base; value; ratio, low, high, p_value, significant and reason as in `ratios`. Texts are
    escaped as by `export`.
    """
    rows = _comparison_rows(sides, levels)
    return _without_formulas(rows, ["level", "case", "name", "side", "metric", "reason"]).to_csv(index=False)


def comparison_json(sides: Sequence[Group], levels: Sequence[str]) -> str:
    """Return a comparison as JSON: groups, the first of which is the baseline, and the rows of `comparison_csv`.

    `turns` is null, or how a measurement by turns ended: the fields of `Turns`, and the rows of `turn_decisions`.
    """
    values = _comparison_rows(sides, levels).astype(object)
    rows = values.where(values.notna(), None).to_dict("records")
    turns = sides[0].turns
    ended = None if turns is None else {**asdict(turns), "decisions": turn_decisions(sides).to_dict("records")}
    return json.dumps({"groups": [side.label for side in sides], "turns": ended, "rows": rows}, indent=1,
                      allow_nan=False)


def _comparison_rows(sides: Sequence[Group], levels: Sequence[str]) -> pd.DataFrame:
    frames = [metric_ratios(sides).assign(level="case")]
    for by in (level for level in levels if level != "case"):
        parts = ratios(sides, by).rename(columns={by: "name", "base_s": "base", "time_s": "value"})
        frames.append(parts.assign(level=by, metric="time"))
    columns = ["level", "case", "name", "side", "metric", "base", "value", *JUDGEMENT]
    return pd.concat([frame.reindex(columns=columns).astype({"name": "str"}) for frame in frames])


def export(run: Run, form: str, target: Path, *, force: bool = False) -> list[str]:
    """Write the tables of a run into a directory atomically, with its manifest and `columns.json`; return the names.

    The table `summary` has the headline numbers. Tables without rows are left out. In CSV, a text that a spreadsheet
    would run as a formula begins with an apostrophe.
    """
    if form not in FORMATS:
        raise UserError(f"unknown format '{form}': choose from {', '.join(FORMATS)}")
    _check_target(target, force=force)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    with writing(target):
        try:
            temporary.mkdir(parents=True)
            names = _write_all(run, form, temporary)
            if target.exists():
                shutil.rmtree(target)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return names


def _check_target(target: Path, *, force: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"{target} is a file: name a directory with --to")
    if not force:
        raise UserError(f"{target} exists: --force replaces it, --to names another")
    # Only an export has columns.json: delete nothing else, such as a run, which also has run.json.
    if any(target.iterdir()) and not (target / "columns.json").is_file():
        raise UserError(f"{target} is not an export, so it is not replaced: choose another directory with --to")


def _write_all(run: Run, form: str, directory: Path) -> list[str]:
    tables = {SUMMARY: run.summary(), **{table: run.table(table) for table in TABLES}}
    tables = {table: rows for table, rows in tables.items() if len(rows)}
    for table, rows in tables.items():
        FORMATS[form](table, rows, directory / f"{table}.{form}")
    manifest = json.dumps(redacted(run.manifest), indent=1, allow_nan=False)
    (directory / "run.json").write_text(f"{manifest}\n", encoding="utf-8")
    columns = {table: [{name: getattr(column, name) for name in _DESCRIBED} for column in _EXPORTED[table]]
               for table in tables}
    (directory / "columns.json").write_text(json.dumps(columns, indent=1) + "\n", encoding="utf-8")
    return sorted(path.name for path in directory.iterdir())
