"""The record on disk, and reading it; `charact.writer` writes it, case by case, and renames it into place.

    <time>-<name>-<id>/run.json            manifest: what ran, on what machine, with which status
    <time>-<name>-<id>/<table>.parquet     the tables of `charact.schema`
    <time>-<name>-<id>/trace/<case>.pt.trace.json.gz
    <time>-<name>-<id>/weights/<case>.pt   the best weights of a training

While a run is going on its directory is hidden (`.partial-...`) and holds one part file a case and table, so that a
killed run can still be read with `load_run(path, partial=True)`; a training can also be gone on with, from what
`checkpoints/` holds.
"""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from charact.errors import UserError
from charact.partial import PARTIAL_PREFIX, PARTS
from charact.schema import ADDED_COLUMNS, SCHEMA_VERSION, TABLES, column_names

FLUSHES = "flushes"
"""Key of the manifest of a run that is going on: numbers of the last flushes by case and table, where not the first."""
_ARROW_TYPES = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64()}

_MANIFEST_FIELDS: dict[str, Any] = {
    "cases": list, "machine": dict, "software": dict, "options": dict, "command_line": list, "tables": list,
    "reference": dict, FLUSHES: dict,
}
_CASE_FIELDS: dict[str, Any] = {
    "workload": str, "variant": str, "mode": str, "precision": str, "device": str, "input_size": int | None,
    "batch_size": int | None, "num_parameters": int | None, "reason": str | None, "passes": dict, "status": str,
    "device_name": str | None, "data": str | None,
}

_REMEDY = "restore it from a copy, or move the run away"

Rows = list[dict[str, Any]]


def arrow_schema(table: str) -> pa.Schema:
    """Arrow schema of a table; each field carries its description as metadata."""
    return pa.schema([
        pa.field(column.name, _ARROW_TYPES[column.type], metadata={"description": column.description})
        for column in TABLES[table]
    ])


def part_path(directory: Path, table: str, number: int, flush: int = 0) -> Path:
    """Where a case's rows of a table are while the run is going on, of each flush at another place."""
    again = f"-{flush:06d}" if flush else ""
    return directory / PARTS / f"{table}-{number:04d}{again}.parquet"


def read_parts(directory: Path, table: str, manifest: dict[str, Any]) -> pa.Table | None:
    """Rows of the flushes that the manifest holds; one that was not whole when the run was killed is left out."""
    paths = [part_path(directory, table, number, last_flush(manifest, entry["case"], table))
             for number, entry in enumerate(manifest["cases"])]
    parts = [_read_part(path) for path in paths if path.exists()]
    return pa.concat_tables(parts) if parts else None


def last_flush(manifest: dict[str, Any], case: str, table: str) -> int:
    """Number of the last flush, from 0, of a case's rows of a table while the run is going on."""
    by_table = manifest.get(FLUSHES, {}).get(case)
    number = by_table.get(table) if isinstance(by_table, dict) else None
    return number if isinstance(number, int) else 0


def _read_part(path: Path) -> pa.Table:
    try:
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} is corrupt ({str(error).partition(chr(10))[0]}): remove it, and all other rows of the "
                        "run can be read") from error


@dataclass
class Run:
    """A record that was read: the manifest, and the tables as DataFrames."""

    path: Path
    manifest: dict[str, Any]
    partial: bool = False
    _tables: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)
    found: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """What analyses have found in it, kept by `charact.analysis.once`."""

    def __repr__(self) -> str:
        cases = ", ".join(f"{case['case']}: {case['status']}" for case in self.manifest["cases"]) or "no cases"
        return f"<Run {self.path} ({cases})>"

    @property
    def run_id(self) -> str:
        """Identifier of the run: the name that its directory was given."""
        return str(self.manifest["run_id"])

    @cached_property
    def cases(self) -> pd.DataFrame:
        """One row a case: its coordinates, status and reason; what the passes say stays in the manifest."""
        return pd.DataFrame([
            {key: value for key, value in case.items() if not isinstance(value, (dict, list))}
            for case in self.manifest["cases"]
        ])

    def passes(self, case: str) -> dict[str, Any]:
        """What each pass over a case recorded about itself, by pass: status, reason, its own facts."""
        for entry in self.manifest["cases"]:
            if entry["case"] == case:
                return dict(entry.get("passes", {}))
        raise KeyError(case)

    def table(self, name: str) -> pd.DataFrame:
        """A table of `schema.TABLES`; with no rows, but all columns, where the run has none.

        Raises:
            UserError: the file is corrupt, lacks a column or holds one of another type.
        """
        if name not in self._tables:
            self._tables[name] = self._read(name)
        return self._tables[name]

    def _read(self, name: str) -> pd.DataFrame:
        path = self.path / f"{name}.parquet"
        try:
            if self.partial:
                rows = read_parts(self.path, name, self.manifest)
            else:
                rows = pq.ParquetFile(path).read() if path.exists() else None
            if rows is None and not self.partial and name in self.manifest.get("tables", []):
                raise UserError(f"{path} is missing, which the record once held: {_REMEDY}")
            if rows is None:
                rows = arrow_schema(name).empty_table()
            missing = [column for column in column_names(name) if column not in rows.column_names]
            for column in missing:
                if column not in ADDED_COLUMNS.get(name, ()):
                    raise UserError(f"{path} is not a record's table: it has no column '{column}'")
                rows = rows.append_column(column, pa.nulls(len(rows)))
            rows = rows.select(column_names(name)).cast(arrow_schema(name))
            rows.validate(full=True)
            frame: pd.DataFrame = rows.to_pandas()
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise UserError(f"{path} is corrupt ({str(error).partition(chr(10))[0]}): {_REMEDY}") from error
        strangers = set(frame["case"]) - {case["case"] for case in self.manifest["cases"]}
        if strangers:
            raise UserError(f"{path} is corrupt (run.json has no case '{min(map(str, strangers))}'): {_REMEDY}")
        return frame

    @property
    def iterations(self) -> pd.DataFrame:
        """Table `iterations`."""
        return self.table("iterations")

    @property
    def operators(self) -> pd.DataFrame:
        """Table `operators`."""
        return self.table("operators")

    @property
    def kernels(self) -> pd.DataFrame:
        """Table `kernels`."""
        return self.table("kernels")

    @property
    def memory(self) -> pd.DataFrame:
        """Table `memory`."""
        return self.table("memory")

    @property
    def fits(self) -> pd.DataFrame:
        """Table `fits`."""
        return self.table("fits")

    @property
    def flop(self) -> pd.DataFrame:
        """Table `flop`."""
        return self.table("flop")

    @property
    def layers(self) -> pd.DataFrame:
        """Table `layers`."""
        return self.table("layers")

    @property
    def stages(self) -> pd.DataFrame:
        """Table `stages`."""
        return self.table("stages")

    @property
    def metrics(self) -> pd.DataFrame:
        """Table `metrics`."""
        return self.table("metrics")

    @property
    def problems(self) -> pd.DataFrame:
        """Table `problems`."""
        return self.table("problems")

    @property
    def repetitions(self) -> pd.DataFrame:
        """Table `repetitions`."""
        return self.table("repetitions")

    @property
    def bricks(self) -> pd.DataFrame:
        """Table `bricks`."""
        return self.table("bricks")

    @property
    def brick_times(self) -> pd.DataFrame:
        """Table `brick_times`."""
        return self.table("brick_times")

    @property
    def pieces(self) -> pd.DataFrame:
        """Table `pieces`."""
        return self.table("pieces")

    @property
    def constructions(self) -> pd.DataFrame:
        """Table `constructions`."""
        return self.table("constructions")

    @property
    def counters(self) -> pd.DataFrame:
        """Table `counters`."""
        return self.table("counters")


def load_run(path: str | Path, *, partial: bool = False) -> Run:
    """Read a run directory.

    Args:
        path: the directory that holds `run.json`.
        partial: read what a killed run had flushed (its directory is hidden, `.partial-...`).

    Raises:
        UserError: there is no record, it is corrupt, unfinished (and `partial` is false), or of a newer schema.
    """
    path = Path(path)
    manifest_path = path / "run.json"
    try:
        if not manifest_path.is_file():
            final = path.with_name(path.name.removeprefix(PARTIAL_PREFIX))
            if final != path and not path.exists() and final.exists():
                raise UserError(f"{path} has ended: its run is {final}")
            raise UserError(f"{path} holds no run.json: name a run directory, such as one below runs/")
        manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
        version = manifest["schema_version"]
        if type(version) is not int or version < 1:
            raise ValueError(f"schema_version is {version!r}")
        if version > SCHEMA_VERSION:
            raise UserError(f"{path} was written with schema {version}, this charact reads up to {SCHEMA_VERSION}: "
                            "upgrade charact")
        _check(manifest)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{manifest_path} is corrupt ({type(error).__name__}: {error}): {_REMEDY}") from error
    unfinished = manifest["status"] == "running"
    if unfinished and not partial:
        raise UserError(f"{path} was not finished: charact report --partial reads what it holds")
    return Run(path=path, manifest=manifest, partial=unfinished)


def _check(manifest: dict[str, Any]) -> None:
    """Refuse a manifest that lacks what every writer of this schema puts there.

    Raises:
        ValueError, TypeError, KeyError: what is missing or not what it should be.
    """
    for name, kind in _MANIFEST_FIELDS.items():
        if name in manifest and not isinstance(manifest[name], kind):
            raise TypeError(f"{name} is not what it should be")
    if not isinstance(manifest.get("software", {}).get("torch"), str | None):
        raise TypeError("the version of torch is not what it should be")
    if not isinstance(manifest.get("machine", {}).get("cpu", {}), dict | None):
        raise TypeError("the machine's cpu is not what it should be")
    for case in manifest["cases"]:
        if not isinstance(case, dict):
            raise TypeError("a case is not what it should be")
        if "status" not in case:
            raise KeyError("status of a case")
        for name, kind in _CASE_FIELDS.items():
            if name in case and not isinstance(case[name], kind):
                raise TypeError(f"{name} of a case is not what it should be")
        for facts in case.get("passes", {}).values():
            if not isinstance(facts["status"], str):
                raise TypeError("a pass is not what it should be")
    cases = [case["case"] for case in manifest["cases"]]
    for text in (manifest["run_id"], manifest["name"], manifest["status"], *cases):
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is not a text")
    if len(set(cases)) < len(cases):
        raise ValueError("a case stands there twice")
