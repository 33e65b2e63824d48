"""Writing a record: a run directory that is whole or absent, written case by case and renamed into place."""

import os
import shutil
import time
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from charact.errors import UserError
from charact.files import whole, writing
from charact.partial import LOCK, PARTIAL_PREFIX, begin_run, take_lock, write_manifest
from charact.schema import TABLES, column_names
from charact.store import CHECKPOINTS, Rows, arrow_schema, load_run, part_path, read_parts


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
    def reopen(cls, directory: Path, held: int | None = None) -> Self:
        """Go on with a run that was killed, maybe when all was written and only `publish` was left to do.

        Args:
            directory: of the run.
            held: descriptor of its lock, which a process was given by the one that started it.

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
        writer._lock = take_lock(directory) if held is None else held
        # Only now is nobody writing: what was read before may be old.
        writer.manifest = load_run(directory, partial=True).manifest
        return writer

    @property
    def lock(self) -> int:
        """Descriptor of the lock that the writer holds."""
        return self._lock

    def reload(self) -> None:
        """Take in what another process that holds the same lock has flushed."""
        self.manifest = load_run(self.directory, partial=True).manifest

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
        """
        entries = {entry["case"]: entry for entry in self.manifest["cases"]} | {case["case"]: case}
        number = list(entries).index(case["case"])
        for table, rows in tables.items():
            if rows:
                unknown = {key for row in rows for key in row} - set(column_names(table))
                assert not unknown, f"table {table} has no column {unknown}"
                filled = [{"case": case["case"], **row} for row in rows]
                self._write_table(part_path(self.directory, table, number), table,
                                  pa.Table.from_pylist(filled, schema=arrow_schema(table)))
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
        written = []
        for table in TABLES:
            parts = read_parts(self.directory, table, len(self.manifest["cases"]))
            if parts is not None:
                self._write_table(self.directory / f"{table}.parquet", table, parts)
                written.append(table)
        final = self.manifest | {"status": status, "tables": written, "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
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
            pq.write_table(rows.cast(arrow_schema(table)), temporary, compression="zstd")
