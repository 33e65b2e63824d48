"""Reading of records from disk; `charact.record.writer` writes them.

    <time>-<name>-<id>/run.json            manifest: what ran, on what machine, with which status
    <time>-<name>-<id>/<table>.parquet     the tables of `charact.record.schema`
    <time>-<name>-<id>/trace/<case>.pt.trace.json.gz
    <time>-<name>-<id>/weights/<case>.pt   the best weights of a training

The directory of an unfinished run is hidden (`.partial-...`) and has one part file for each case and table. A killed
run can be read with `load_run(path, partial=True)`; a training can be resumed from `checkpoints/`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from charact.core.errors import UserError
from charact.core.files import reading
from charact.core.text import valid_values
from charact.record.in_progress import CHECKSUM, PARTIAL_PREFIX, TABLE_CHECKSUMS, trace_name
from charact.record.manifest import COORDINATES, REMEDY, CaseEntry, Options, one_line, read_manifest, typed_entry
from charact.record.schema import DAMAGED, TABLES
from charact.record.schema import Rows as Rows
from charact.record.tables import frame_of, read_parts, read_table

# Cached, because creating a table takes a millisecond, and most runs lack most tables.
_empty = cache(partial(frame_of, rows=[]))


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
        """The cases with the facts of their passes, as typed objects."""
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

        `time_s` is the time of what the column `time_of` names: an iteration (median), an epoch (mean), a call.
        `low_s` and `high_s` are the ends of its 95 % interval; they are null if `interval_reason` is not.
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
            if not exists and name in self.manifest.get("tables", []):
                raise UserError(f"{path} is missing, but was part of the record: {REMEDY}")
            if exists and self.checksums is not None and name not in self.checksums:
                raise UserError(f"{path} was not written with its run (run.json has no checksum of it): move it away")
            rows = read_table(path, name, (self.checksums or {}).get(name)) if exists else None
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
