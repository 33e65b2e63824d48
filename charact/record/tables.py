"""Tables of a record as Parquet files: writing, reading, and checks against the columns of `charact.record.schema`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from charact.core.bounded_reading import check_declared, read_all
from charact.core.errors import UserError
from charact.core.files import atomic_write, reading
from charact.core.text import valid_values
from charact.record.in_progress import PARTS, checksum
from charact.record.manifest import REMEDY, one_line
from charact.record.redaction import redacted_column
from charact.record.schema import ADDED_COLUMNS, LARGEST, TABLES, UNIQUE, Column, Rows, column_names

FLUSHES = "flushes"
"""Key of an unfinished run's manifest: number of flushes after the first, by case position and table."""
_ARROW_TYPES = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64()}

_MOST_TABLE_BYTES = 2 * 2**30
"""Default limit of the memory of a table."""
_BATCH_ROWS = 65536
_MOST_SHOWN = 60


def arrow_schema(table: str | Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of a table of the record, or of columns; a field has its description as metadata."""
    return pa.schema([
        pa.field(column.name, _ARROW_TYPES[column.type], metadata={"description": column.description})
        for column in (TABLES[table] if isinstance(table, str) else table)
    ])


def frame_of(table: str, rows: Rows) -> pd.DataFrame:
    """Return rows as a DataFrame with the types of their table."""
    frame: pd.DataFrame = pa.Table.from_pylist(rows, schema=arrow_schema(table)).to_pandas()
    return frame


def typed_rows(rows: Rows, table: str, case: str) -> pa.Table:
    """Return the rows of a case with the types of their table, valid UTF-8 and finite numbers, without secrets.

    Raises:
        UserError: a value has another type, or is not allowed by the schema.
    """
    schema = arrow_schema(table)
    try:
        try:
            typed = pa.Table.from_pylist(rows, schema)
        except UnicodeEncodeError:
            typed = pa.Table.from_pylist(valid_values(rows), schema)
        typed = _finite(_redacted(typed))
        problem = _problem(typed, table)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{case} cannot be recorded (table {table}: {one_line(error)})") from error
    if problem is not None:
        raise UserError(f"{case} cannot be recorded (table {table}, {problem})")
    return typed


def _redacted(rows: pa.Table) -> pa.Table:
    for place, column in enumerate(rows.schema):
        if pa.types.is_string(column.type):
            values = rows.column(place).combine_chunks().dictionary_encode()
            texts: list[str] = values.dictionary.to_pylist()
            clean = redacted_column(column.name, texts)
            if clean != texts:
                rows = rows.set_column(place, column, pa.array(clean, pa.string()).take(values.indices))
    return rows


def _finite(rows: pa.Table) -> pa.Table:
    for place, column in enumerate(rows.schema):
        if pa.types.is_floating(column.type):
            values = rows.column(place)
            nothing = pa.scalar(None, column.type)
            rows = rows.set_column(place, column, pc.if_else(pc.is_finite(values), values, nothing))
    return rows


def write_table(path: Path, table: str, rows: pa.Table) -> None:
    """Write a table to a file, atomically and with page checksums."""
    # Arrow accepts paths that are not UTF-8 only as bytes.
    with atomic_write(path) as temporary, pa.OSFile(os.fsencode(temporary), "wb") as file:
        pq.write_table(rows.cast(arrow_schema(table)), file, compression="zstd", write_page_checksum=True)


def part_path(directory: Path, table: str, number: int, flush: int = 0) -> Path:
    """Return the path of a case's rows of a table in an unfinished run; each flush has its own file."""
    again = f"-{flush:06d}" if flush else ""
    return directory / PARTS / f"{table}-{number:04d}{again}.parquet"


def read_parts(directory: Path, table: str, manifest: dict[str, Any]) -> pa.Table | None:
    """Return the rows of the flushes that the manifest lists; a flush that was interrupted is left out.

    Raises:
        UserError: a file cannot be read or is corrupt.
    """
    flushes = manifest.get(FLUSHES, {})
    paths = [part_path(directory, table, number, flushes.get(str(number), {}).get(table, 0))
             for number in range(len(manifest["cases"]))]
    remedy = "remove it to read the other rows of the run"
    parts = [read_table(path, table, remedy=remedy) for path in paths if path.exists()]
    return pa.concat_tables(parts) if parts else None


def read_table(path: Path, table: str, checksum_of_file: str | None = None, *, remedy: str = REMEDY) -> pa.Table:
    """Read and check a table of `schema.TABLES` from a file, by its checksum too if the manifest has one.

    Raises:
        UserError: the file cannot be read, was changed after it was written, or unpacks to more than the limit; or
            a column is missing, has another type, or has a value that the schema does not allow.
    """
    with reading(path):
        if not path.is_file():
            raise UserError(f"{path} is no regular file: {remedy}")
        with path.open("rb") as file:
            content = read_all(file, path, _MOST_TABLE_BYTES)
    if checksum_of_file is not None and checksum(content) != checksum_of_file:
        raise UserError(f"{path} was changed since it was written (its checksum does not match): {remedy}")
    try:
        rows = _decoded(content, path, table)
        for column in column_names(table):
            if column not in rows.column_names:
                if column not in ADDED_COLUMNS.get(table, ()):
                    raise UserError(f"{path} is not a record's table: it has no column '{column}'")
                rows = rows.append_column(column, pa.nulls(len(rows)))
        rows = pa.table([_cast(rows[field.name], field.type, field.name) for field in arrow_schema(table)],
                        arrow_schema(table))
        rows.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise UserError(f"{path} is corrupt ({str(error).partition(chr(10))[0][:200]}): {remedy}") from error
    if (problem := _problem(rows, table)) is not None:
        raise UserError(f"{path} is corrupt ({problem}): {remedy}")
    return rows


def _decoded(content: bytes, path: Path, table: str) -> pa.Table:
    """Return the rows of a Parquet file within the limit of memory, including texts.

    A file of a few kilobytes can declare a billion rows, or repeat one long text in each of a million.
    """
    metadata = pq.read_metadata(pa.BufferReader(content))
    unpacked = sum(max(metadata.row_group(number).total_byte_size, 0) for number in range(metadata.num_row_groups))
    declared = max(unpacked, 8 * max(metadata.num_rows, 0) * metadata.num_columns)
    check_declared(declared, path, _MOST_TABLE_BYTES)
    columns = [name for name in column_names(table) if name in metadata.schema.names]
    texts = [column.name for column in TABLES[table] if column.type == "string" and column.name in columns]
    file = pq.ParquetFile(pa.BufferReader(content), metadata=metadata, page_checksum_verification=True,
                          read_dictionary=texts)
    batches, num_bytes = [], 0
    for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
        for column in batch.columns:
            if pa.types.is_dictionary(column.type):
                lengths = pc.binary_length(column.dictionary).take(column.indices)
                num_bytes += int(pc.sum(lengths).as_py() or 0) + 8 * len(column)
            else:
                num_bytes += column.nbytes
        check_declared(num_bytes, path, _MOST_TABLE_BYTES)
        batches.append(batch)
    empty = pa.schema([file.schema_arrow.field(name) for name in columns])
    return pa.Table.from_batches(batches, batches[0].schema if batches else empty)


def _cast(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    if pa.types.is_floating(kind) and pa.types.is_string(column.type):
        raise ValueError(f"column '{name}' has text")  # Arrow would parse numbers in it
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise ValueError(f"column '{name}': {error}") from error


def _problem(rows: pa.Table, table: str) -> str | None:
    """Return what is invalid in a table with the schema's types, in one line that names the column; None if valid."""
    for column in TABLES[table]:
        values = rows[column.name]
        if not column.nullable and values.null_count:
            problem: str | None = f"{values.null_count:,} rows have no value"
        else:
            problem = _text_problem(values, column) if column.type == "string" else _number_problem(values, column)
        if problem is not None:
            return f"column '{column.name}': {problem}"
    keys = list(UNIQUE.get(table, ()))
    if keys and len(rows.group_by(keys).aggregate([])) < len(rows):
        return f"rows with the same {', '.join(keys)}"
    return None


def _number_problem(values: pa.ChunkedArray, column: Column) -> str | None:
    if values.null_count == len(values):
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
    for value in pc.unique(values).drop_null().to_pylist():
        shown = repr(value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}…")
        if column.allowed is not None and value not in column.allowed:
            return f"{shown} is not one of {', '.join(column.allowed)}"
        if column.json is not None:
            try:
                msgspec.json.decode(value, type=column.json)
            except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
                reason = " ".join(str(error).split())[:_MOST_SHOWN]
                return f"{shown} is not valid JSON for this column ({reason})"
    return None
