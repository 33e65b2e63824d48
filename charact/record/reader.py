"""Reading of records from disk; `charact.record.writer` writes them.

    <time>-<name>-<id>/run.json            manifest: what ran, on what machine, with which status
    <time>-<name>-<id>/<table>.parquet     the tables of `charact.record.schema`
    <time>-<name>-<id>/trace/<case>.pt.trace.json.gz
    <time>-<name>-<id>/weights/<case>.pt   the best weights of a training

The directory of an unfinished run is hidden (`.partial-...`) and has one part file for each case and table. A killed
run can be read with `load_run(path, partial=True)`; a training can be resumed from `checkpoints/`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from charact.core.bounded_reading import check_declared, read_all
from charact.core.errors import UserError
from charact.core.files import reading
from charact.core.text import valid_values
from charact.record.checksums import CHECKSUM, TABLE_CHECKSUMS, checksum
from charact.record.in_progress import PARTIAL_PREFIX, PARTS, trace_name
from charact.record.manifest import COORDINATES, REMEDY, CaseEntry, Options, one_line, read_manifest, typed_entry
from charact.record.schema import ADDED_COLUMNS, DAMAGED, TABLES, Column, column_names
from charact.record.schema import Rows as Rows
from charact.record.table_checks import table_problem

FLUSHES = "flushes"
"""Key of an unfinished run's manifest: number of flushes after the first, by case position and table."""
_ARROW_TYPES = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64()}

_MOST_TABLE_BYTES = 2 * 2**30
"""Default limit of the memory of a table."""
_BATCH_ROWS = 65536


def arrow_schema(table: str | Sequence[Column]) -> pa.Schema:
    """Return the Arrow schema of a table of the record, or of columns; a field has its description as metadata."""
    return pa.schema([
        pa.field(column.name, _ARROW_TYPES[column.type], metadata={"description": column.description})
        for column in (TABLES[table] if isinstance(table, str) else table)
    ])


@cache
def _empty(table: str) -> pd.DataFrame:
    """Return a table without rows; cached, because creating one takes a millisecond and most runs lack most tables."""
    return frame_of(table, [])


def frame_of(table: str, rows: Rows) -> pd.DataFrame:
    """Return rows as a DataFrame with the types of their table."""
    frame: pd.DataFrame = pa.Table.from_pylist(rows, schema=arrow_schema(table)).to_pandas()
    return frame


def part_path(directory: Path, table: str, number: int, flush: int = 0) -> Path:
    """Return the path of a case's rows of a table in an unfinished run; each flush has its own file."""
    again = f"-{flush:06d}" if flush else ""
    return directory / PARTS / f"{table}-{number:04d}{again}.parquet"


def read_parts(directory: Path, table: str, manifest: dict[str, Any]) -> pa.Table | None:
    """Return the rows of the flushes that the manifest lists; a flush that was interrupted is left out.

    Raises:
        UserError: a file cannot be read or is corrupt.
    """
    paths = [part_path(directory, table, number, last_flush(manifest, number, table))
             for number in range(len(manifest["cases"]))]
    remedy = "remove it to read the other rows of the run"
    parts = [read_table(path, table, remedy=remedy) for path in paths if path.exists()]
    return pa.concat_tables(parts) if parts else None


def last_flush(manifest: dict[str, Any], number: int, table: str) -> int:
    """Return the index of the last flush of a table's rows, for the case at a position of the manifest."""
    return int(manifest.get(FLUSHES, {}).get(str(number), {}).get(table, 0))


def write_table(path: Path, table: str, rows: pa.Table) -> None:
    """Write a table to a file, with page checksums."""
    # Arrow accepts paths that are not UTF-8 only as bytes.
    with pa.OSFile(os.fsencode(path), "wb") as file:
        pq.write_table(rows.cast(arrow_schema(table)), file, compression="zstd", write_page_checksum=True)


def finite(rows: pa.Table) -> pa.Table:
    """Return the rows with null for every number that is not finite."""
    for number, column in enumerate(rows.columns):
        if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column)).as_py():
            rows = rows.set_column(number, rows.field(number),
                                   pc.if_else(pc.is_finite(column), column, pa.scalar(None, column.type)))
    return rows


def read_table(path: Path, table: str, checksum_of_file: str | None = None, *, remedy: str = REMEDY) -> pa.Table:
    """Read and check a table from a file.

    Args:
        path: the file.
        table: one of `schema.TABLES`.
        checksum_of_file: checksum from the manifest; None if it has none.
        remedy: advice in the error message.

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
        missing = [column for column in column_names(table) if column not in rows.column_names]
        for column in missing:
            if column not in ADDED_COLUMNS.get(table, ()):
                raise UserError(f"{path} is not a record's table: it has no column '{column}'")
            rows = rows.append_column(column, pa.nulls(len(rows)))
        rows = rows.select(column_names(table))
        rows = pa.table([_cast(rows[name], kind, name) for name, kind in _types(table).items()], arrow_schema(table))
        rows.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise UserError(f"{path} is corrupt ({str(error).partition(chr(10))[0][:200]}): {remedy}") from error
    if (problem := table_problem(rows, table)) is not None:
        raise UserError(f"{path} is corrupt ({problem}): {remedy}")
    return rows


def _types(table: str) -> dict[str, pa.DataType]:
    return {column.name: _ARROW_TYPES[column.type] for column in TABLES[table]}


def _cast(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    if pa.types.is_floating(kind) and pa.types.is_string(column.type):
        raise ValueError(f"column '{name}' has text")  # Arrow would parse numbers in it
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise ValueError(f"column '{name}': {error}") from error


def _decoded(content: bytes, path: Path, table: str) -> pa.Table:
    """Return the rows of a Parquet file within the limit of memory, including texts.

    A file of a few kilobytes can declare a billion rows, or repeat one long text in each of a million.
    """
    metadata = pq.read_metadata(pa.BufferReader(content))
    check_declared(_declared_bytes(metadata), path, _MOST_TABLE_BYTES)
    columns = [name for name in column_names(table) if name in metadata.schema.names]
    file = pq.ParquetFile(pa.BufferReader(content), metadata=metadata, page_checksum_verification=True,
                          read_dictionary=[name for name in columns if _types(table)[name] == pa.string()])
    batches, num_bytes = [], 0
    for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
        num_bytes += sum(_decoded_bytes(column) for column in batch.columns)
        check_declared(num_bytes, path, _MOST_TABLE_BYTES)
        batches.append(batch)
    empty = pa.schema([file.schema_arrow.field(name) for name in columns])
    return pa.Table.from_batches(batches, batches[0].schema if batches else empty)


def _declared_bytes(metadata: pq.FileMetaData) -> int:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    unpacked = sum(max(group.total_byte_size, 0) for group in groups)
    return int(max(unpacked, 8 * max(metadata.num_rows, 0) * metadata.num_columns))


def _decoded_bytes(column: pa.Array) -> int:
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary).take(column.indices)
    return int(pc.sum(lengths).as_py() or 0) + 8 * len(column)


@dataclass
class Run:
    """A record that was read: the manifest, and the tables as DataFrames."""

    path: Path
    manifest: dict[str, Any]
    partial: bool = False
    _tables: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)
    found: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """Results of analyses, cached by `charact.analysis.common.cache`."""
    checksums: dict[str, str] | None = field(default=None, repr=False)
    """Checksums of the tables' files, by table; None in early records."""

    def __post_init__(self) -> None:
        self._given = dict(self._tables)

    def __repr__(self) -> str:
        cases = ", ".join(f"{case['case']}: {case['status']}" for case in self.manifest["cases"]) or "no cases"
        return f"<Run {self.path} ({cases})>"

    @property
    def run_id(self) -> str:
        """Identifier of the run: the initial name of its directory."""
        return str(self.manifest["run_id"])

    @cached_property
    def cases(self) -> pd.DataFrame:
        """One row for each case: its coordinates, status and reason; facts of passes are in the manifest."""
        return pd.DataFrame([
            {key: value for key, value in (COORDINATES | case).items() if not isinstance(value, (dict, list))}
            for case in self.manifest["cases"]
        ])

    @cached_property
    def entries(self) -> list[CaseEntry]:
        """The cases with the facts of their passes, as Structs."""
        return [typed_entry(entry) for entry in self.manifest["cases"]]

    def entry(self, case: str) -> CaseEntry:
        """Return a case with the facts of its passes."""
        for entry in self.entries:
            if entry.case == case:
                return entry
        raise KeyError(case)

    def entries_with(self, name: str) -> list[CaseEntry]:
        """Return the cases that have taken a pass."""
        return [entry for entry in self.entries if name in entry.passes]

    @cached_property
    def options(self) -> Options:
        """Options of the command that wrote the run; only those that charact reads again."""
        return msgspec.convert(self.manifest.get("options", {}), Options)

    def passes(self, case: str) -> dict[str, Any]:
        """Return the recorded facts of each pass over a case, by pass: status, reason and others."""
        return {name: msgspec.to_builtins(msgspec.structs.asdict(facts))
                for name, facts in self.entry(case).passes.items()}

    def table(self, name: str) -> pd.DataFrame:
        """Return a table of `schema.TABLES`; without rows if the run has none.

        Raises:
            UserError: the file cannot be read, was changed after it was written, lacks a column, or has a value
                that the schema does not allow.
        """
        if name not in self._tables:
            self._tables[name] = self._read(name)
        return self._tables[name]

    def trace(self, case: str) -> Path | None:
        """Return the path of a case's trace; None if the run has none."""
        path = self.path / "trace" / trace_name(case)
        return path if path.is_file() else None

    def summary(self) -> pd.DataFrame:
        """Return the headline numbers, one row for each case: the table `summary` of the reference.

        `time_s` is the median time of an iteration, `low_s` to `high_s` its 95 % interval.
        """
        # By name, since records are read without analyses.
        found: pd.DataFrame = import_module("charact.analysis.summary").summary(self)
        return found

    def texts(self, column: str, texts: Sequence[str]) -> list[str]:
        """Return texts of a trace as the run shows those of a column."""
        return list(texts)

    def release(self) -> None:
        """Free the tables and cached results of analyses; both are read again when needed."""
        self._tables = dict(self._given)
        self.found.clear()
        for name in ("cases", "entries", "options"):
            self.__dict__.pop(name, None)

    def _read(self, name: str) -> pd.DataFrame:
        path = self.path / f"{name}.parquet"
        if self.partial:
            rows = read_parts(self.path, name, self.manifest)
        else:
            with reading(path):
                exists = path.exists()
            rows = self._read_file(path, name) if exists else None
            if rows is None and name in self.manifest.get("tables", []):
                raise UserError(f"{path} is missing, but was part of the record: {REMEDY}")
        if rows is None:
            return _empty(name).copy()
        frame: pd.DataFrame = rows.to_pandas()
        sound = {case["case"] for case in self.manifest["cases"] if case["status"] != DAMAGED}
        strangers = set(frame["case"]) - sound
        if not strangers:
            return frame
        if len(sound) == len(self.manifest["cases"]):
            stranger = one_line(ValueError(min(strangers)))
            raise UserError(f"{path} is corrupt (column 'case': run.json has no case '{stranger}'): {REMEDY}")
        # Rows of damaged cases; their names may be what was damaged.
        return frame[frame["case"].isin(sound)].reset_index(drop=True)

    def _read_file(self, path: Path, name: str) -> pa.Table:
        if self.checksums is None:
            return read_table(path, name)
        if name not in self.checksums:
            raise UserError(f"{path} was not written with its run (run.json has no checksum of it): move it away")
        return read_table(path, name, self.checksums[name])

    def __getattr__(self, name: str) -> pd.DataFrame:
        """Return a table of the record by its name, such as `iterations`."""
        if name in TABLES:
            return self.table(name)
        raise AttributeError(f"a run has no '{name}': its tables are {', '.join(TABLES)}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *TABLES]


def load_run(path: str | Path, *, partial: bool = False) -> Run:
    """Read a run directory.

    Args:
        path: the directory with `run.json`.
        partial: read the flushed data of a killed run (its directory is hidden, `.partial-...`).

    Raises:
        UserError: there is no record, it is corrupt, unfinished (and `partial` is false), or has a newer schema.
    """
    path = Path(path)
    manifest_path = path / "run.json"
    with reading(path):
        if not manifest_path.is_file():
            final = path.with_name(path.name.removeprefix(PARTIAL_PREFIX))
            if final != path and not path.exists() and final.exists():
                raise UserError(f"{path} has ended: its run is {final}")
            raise UserError(f"{path} holds no run.json: name a run directory, such as one below runs/")
    manifest = valid_values(read_manifest(manifest_path))
    unfinished = manifest["status"] == "running"
    if unfinished and not partial:
        raise UserError(f"{path} was not finished: read it with charact report --partial")
    # An export and a run derived from this one have other files.
    manifest.pop(CHECKSUM, None)
    return Run(path=path, manifest=manifest, partial=unfinished, checksums=manifest.pop(TABLE_CHECKSUMS, None))
