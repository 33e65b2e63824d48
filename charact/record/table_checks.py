"""Validation of a table's values against the columns in `charact.record.schema`."""

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from charact.record.schema import LARGEST, TABLES, UNIQUE, Column

_MOST_SHOWN = 60


def table_problem(rows: pa.Table, table: str) -> str | None:
    """Return what is invalid in a table, in one line that names the column; None if it is valid.

    Args:
        rows: rows with the schema's types.
        table: one of `schema.TABLES`.
    """
    for column in TABLES[table]:
        values = rows[column.name]
        problem = _text_problem(values, column) if column.type == "string" else _number_problem(values, column)
        if not column.nullable and values.null_count:
            problem = f"{values.null_count:,} rows have no value"
        if problem is not None:
            return f"column '{column.name}': {problem}"
    keys = list(UNIQUE.get(table, ()))
    if keys and len(rows.group_by(keys).aggregate([])) < len(rows):
        return f"rows with the same {', '.join(keys)}"
    return None


def _number_problem(values: pa.ChunkedArray, column: Column) -> str | None:
    if not len(values) or values.null_count == len(values):
        return None
    if column.type == "float64" and not pc.all(pc.is_finite(values)).as_py():
        return "a number is not finite"
    least, most = pc.min_max(values).as_py().values()
    highest = LARGEST[column.type] if column.most is None else column.most
    lowest = -highest if column.least is None else column.least
    if least < lowest:
        return f"{least} is less than {lowest:g}"
    return f"{most} is more than {highest:g}" if most > highest else None


def _text_problem(values: pa.ChunkedArray, column: Column) -> str | None:
    if column.allowed is None and column.json is None:
        return None
    for value in pc.unique(values).to_pylist():
        if value is None:
            continue
        if column.allowed is not None and value not in column.allowed:
            return f"{_shown(value)} is not one of {', '.join(column.allowed)}"
        if column.json is not None and (problem := _json_problem(value, column.json)):
            return f"{_shown(value)} {problem}"
    return None


def _json_problem(value: str, kind: Any) -> str | None:
    try:
        msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        return f"is not valid JSON for this column ({' '.join(str(error).split())[:_MOST_SHOWN]})"
    return None


def _shown(value: str) -> str:
    return repr(value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}…")
