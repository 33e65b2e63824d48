"""Writing a record: a run directory that is whole or absent, written case by case and renamed into place."""

import os
import shutil
import time
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from charact.checksums import TABLE_CHECKSUMS, checksum
from charact.errors import UserError
from charact.files import whole, writing
from charact.manifest import one_line, read_manifest
from charact.partial import LOCK, PARTIAL_PREFIX, begin_run, take_lock, write_manifest
from charact.schema import TABLES, column_names
from charact.store import CHECKPOINTS, Rows, arrow_schema, finite, load_run, part_path, read_parts, write_table
from charact.table_checks import table_problem


class RunWriter:
    """Writes one run, hidden until `publish`.

    Raises:
        UserError: `out` is a file, is not writable, or the disk is full.
    """

    def __init__(self, out: Path, name: str, manifest: dict[str, Any]) -> None:
        self.directory, self.manifest, self._lock = begin_run(out, name, manifest)
        self.run_id: str = self.manifest["run_id"]
        self.final: Path = out / self.run_id

    @classmethod
    def reopen(cls, directory: Path) -> Self:
        """Go on with a run that was killed, maybe when all was written and only `publish` was left to do.

        Raises:
            UserError: there is no record, it is corrupt or published, or another process is writing it.
        """
        directory = directory.resolve()
        run = load_run(directory, partial=True)
        if not directory.name.startswith(PARTIAL_PREFIX):
            raise UserError(f"{directory} is finished: there is nothing to go on with")
        writer = cls.__new__(cls)
        writer.run_id, writer.manifest = run.run_id, run.manifest
        writer.final, writer.directory = directory.parent / run.run_id, directory
        writer._lock = take_lock(directory)
        # Only now is nobody writing: what was read before may be old. Paths among the options stay as they are.
        writer.manifest = read_manifest(directory / "run.json")
        return writer

    def folder(self, name: str) -> Path:
        """A folder of the run, made if it is not there."""
        folder = self.directory / name
        with writing(folder):
            folder.mkdir(exist_ok=True)
        return folder

    def trace_path(self, case: str) -> Path:
        """Where the raw trace of a case goes, whose name may hold what a file's may not."""
        return self.folder("trace") / f"{case.replace('/', '_')}.pt.trace.json.gz"

    def entry(self, case: str) -> dict[str, Any] | None:
        """A case's entry in the manifest; None before it was flushed."""
        return next((entry for entry in self.manifest["cases"] if entry["case"] == case), None)

    def add_case(self, case: dict[str, Any], tables: dict[str, Rows]) -> None:
        """Flush one case: its entry in the manifest, and its rows (`case` is filled in) by table.

        A case that was flushed before is flushed anew: a training is after each epoch.

        Raises:
            UserError: a row holds what no reader would accept, as those of a foreign trace may; or the disk is full.
        """
        entries = {entry["case"]: entry for entry in self.manifest["cases"]} | {case["case"]: case}
        number = list(entries).index(case["case"])
        for table, rows in tables.items():
            if rows:
                unknown = {key for row in rows for key in row} - set(column_names(table))
                assert not unknown, f"table {table} has no column {unknown}"
                filled = [{"case": case["case"], **row} for row in rows]
                typed = _typed(filled, table, case["case"])
                self._write_table(part_path(self.directory, table, number), table, typed)
        extended = self.manifest | {"cases": list(entries.values())}
        write_manifest(self.directory, extended)
        self.manifest = extended

    def close(self, status: str) -> Path:
        """Merge the cases into the tables and write the final manifest; the directory stays hidden.

        Raises:
            UserError: the disk is full; the cases can still be read with `load_run(path, partial=True)`.
        """
        if self.manifest["status"] == "running":
            self._merge(status)
        # Last: until the manifest says that the run has ended, a reader looks for its rows here.
        for folder in ("parts", CHECKPOINTS):
            shutil.rmtree(self.directory / folder, ignore_errors=True)
        return self.directory

    def _merge(self, status: str) -> None:
        written: dict[str, str] = {}
        for table in TABLES:
            parts = read_parts(self.directory, table, len(self.manifest["cases"]))
            if parts is not None:
                path = self.directory / f"{table}.parquet"
                self._write_table(path, table, parts)
                written[table] = checksum(path.read_bytes())
        final = self.manifest | {"status": status, "tables": list(written), TABLE_CHECKSUMS: written,
                                 "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        write_manifest(self.directory, final)
        self.manifest = final

    def publish(self) -> Path:
        """Rename the directory into place; returns where it is."""
        (self.directory / LOCK).unlink(missing_ok=True)
        with writing(self.final):
            self.directory.rename(self.final)
        os.close(self._lock)
        return self.final

    def discard(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _write_table(self, path: Path, table: str, rows: pa.Table) -> None:
        with whole(path) as temporary:
            write_table(temporary, table, rows)


def _typed(rows: Rows, table: str, case: str) -> pa.Table:
    """Rows of a case in the types of their table.

    Raises:
        UserError: a value is none that the schema allows.
    """
    try:
        typed = finite(pa.Table.from_pylist(rows, schema=arrow_schema(table)))
        problem = table_problem(typed, table)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{case} cannot be recorded (table {table}: {one_line(error)})") from error
    if problem is not None:
        raise UserError(f"{case} cannot be recorded (table {table}, {problem})")
    return typed
