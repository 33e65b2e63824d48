"""Writing of records: case by case into a hidden directory, which is renamed when complete."""

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any, Self

import msgspec

from charact.core.errors import UserError
from charact.core.files import sync, writing
from charact.core.text import valid_values
from charact.record.in_progress import (
    LEFTOVERS,
    LOCK,
    PARTIAL_PREFIX,
    TABLE_CHECKSUMS,
    begin_run,
    checksum,
    take_lock,
    trace_name,
    write_manifest,
)
from charact.record.manifest import CaseEntry, read_manifest, typed_entry
from charact.record.reader import load_run
from charact.record.schema import TABLES, UNFINISHED, Rows, column_names
from charact.record.tables import FLUSHES, part_path, read_parts, typed_rows, write_table


class RunWriter:
    """Writer of one run, hidden until `publish`."""

    def __init__(self, out: Path, name: str, manifest: dict[str, Any]) -> None:
        self.directory, self.manifest, self._lock = begin_run(out, name, manifest)
        self.run_id: str = self.manifest["run_id"]
        self.final: Path = out / self.run_id

    @classmethod
    def reopen(cls, directory: Path, held: int | None = None) -> Self:
        """Continue a run that was killed, possibly after all was written except `publish`.

        `held` is the descriptor of its lock, if the parent process has passed it on.
        """
        directory = directory.resolve()
        run = load_run(directory, partial=True)
        if not directory.name.startswith(PARTIAL_PREFIX):
            raise UserError(f"{directory} is finished: there is nothing to resume")
        writer = cls.__new__(cls)
        writer.run_id, writer.manifest = run.run_id, run.manifest
        writer.final, writer.directory = directory.parent / run.run_id, directory
        writer._lock = take_lock(directory) if held is None else held
        try:
            writer.reload()  # only now, under the lock: the manifest may have changed since it was read
        except BaseException:
            writer.leave()
            raise
        return writer

    @property
    def holds_nothing(self) -> bool:
        """Whether nothing in the record has finished: no case, epoch or round."""
        return not any(entry.status not in UNFINISHED or entry.passes.training.num_epochs
                       or entry.passes.bricks.num_rounds for entry in self._entries())

    @property
    def lock(self) -> int:
        """Descriptor of the writer's lock."""
        return self._lock

    def reload(self) -> None:
        """Read what another process with the same lock has flushed; paths in the options stay shortened."""
        self.manifest = read_manifest(self.directory / "run.json")

    def folder(self, name: str) -> Path:
        """Return a folder of the run; creates it if it does not exist."""
        folder = self.directory / name
        with writing(folder):
            folder.mkdir(exist_ok=True)
        return folder

    def trace_path(self, case: str) -> Path:
        """Return the path of a case's raw trace."""
        return self.folder("trace") / trace_name(case)

    def entry(self, case: str) -> CaseEntry | None:
        """Return a case's entry in the manifest; None before it was flushed."""
        return next((entry for entry in self._entries() if entry.case == case), None)

    def _entries(self) -> list[CaseEntry]:
        return [typed_entry(entry) for entry in self.manifest["cases"]]

    def add_case(self, entry: CaseEntry, tables: dict[str, Rows]) -> None:
        """Flush one case: its entry in the manifest, and its rows (`case` is filled in) by table.

        A case can be flushed again, as a training is after each epoch: until everything is written, the record has the
        earlier version of the case. A table that is not named keeps its rows.
        """
        case = valid_values(msgspec.to_builtins(entry))
        name = case["case"]
        before = {entry["case"]: entry for entry in self.manifest["cases"]}
        entries = before | {name: case}
        number = list(entries).index(name)
        flushes: dict[str, int] = dict(self.manifest.get(FLUSHES, {}).get(str(number), {}))
        for table, rows in tables.items():
            if rows:
                if name in before:
                    flushes[table] = flushes.get(table, 0) + 1
                unknown = {key for row in rows for key in row} - set(column_names(table))
                assert not unknown, f"table {table} has no column {unknown}"
                filled = [{"case": case["case"], **row} for row in rows]
                typed = typed_rows(filled, table, case["case"])
                write_table(part_path(self.directory, table, number, flushes.get(table, 0)), table, typed)
        extended = self.manifest | {"cases": list(entries.values())}
        if flushes:
            extended |= {FLUSHES: self.manifest.get(FLUSHES, {}) | {str(number): flushes}}
        write_manifest(self.directory, extended)
        self.manifest = extended
        for table, flush in flushes.items():
            if flush > 1:  # a process that read the previous manifest may still read the rows of the last flush
                part_path(self.directory, table, number, flush - 2).unlink(missing_ok=True)

    def close(self, status: str) -> Path:
        """Merge the cases into the tables and write the final manifest; the directory stays hidden."""
        if self.manifest["status"] == "running":
            checksums: dict[str, str] = {}
            for table in TABLES:
                if (parts := read_parts(self.directory, table, self.manifest)) is not None:
                    path = self.directory / f"{table}.parquet"
                    write_table(path, table, parts)
                    checksums[table] = checksum(path.read_bytes())
            final = self.manifest | {"status": status, "tables": list(checksums), TABLE_CHECKSUMS: checksums,
                                     "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
            final.pop(FLUSHES, None)
            write_manifest(self.directory, final)
            self.manifest = final
        # Last: until the manifest has the final status, readers use these files.
        self._remove_leftovers()
        return self.directory

    def publish(self) -> Path:
        """Rename the directory to its final name, without temporary files; returns its path."""
        with writing(self.final):
            self._remove_leftovers()
            for trace in self.directory.glob("trace/*"):
                sync(trace)
            sync(self.directory)
            # The lock's file goes last: without it, another process could take the run for one that was killed.
            self.directory.rename(self.final)
            (self.final / LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the run is complete: a failed sync is no error
            sync(self.final.parent)
        os.close(self._lock)
        return self.final

    def _remove_leftovers(self) -> None:
        """Remove files of unfinished runs, and partially written ones."""
        entries = self._entries()
        written = {trace_name(entry.case) for entry in entries if entry.passes.operators.status == "ok"}
        written |= {Path(weights).name for entry in entries if (weights := entry.passes.training.weights)}
        unfinished = [path for folder in ("trace", "weights") for path in self.directory.glob(f"{folder}/*")
                      if path.name not in written]
        hidden = [path for path in self.directory.glob(".*") if path.is_file()]
        for path in (*unfinished, *hidden, *(self.directory / name for name in LEFTOVERS)):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for folder in ("trace", "weights"):
            with contextlib.suppress(OSError):  # it is absent or not empty
                (self.directory / folder).rmdir()

    def leave(self) -> None:
        """Release the lock, so that other processes can continue the hidden run."""
        os.close(self._lock)

    def discard(self) -> None:
        """Remove the run."""
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)
