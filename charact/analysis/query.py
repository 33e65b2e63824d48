"""SQL over the tables of many runs, by DuckDB in memory."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pandas as pd

from charact.core.errors import UserError
from charact.record.schema import TABLES, column_names

if TYPE_CHECKING:
    import duckdb

CASES = "cases"
"""Name of the table with a row per case of each run."""
_FACTS = ("case", "workload", "variant", "input_size", "batch_size", "mode", "precision", "device", "data", "status",
          "reason")
_RUN_FACTS = ("name", "started", "hostname")


def query(paths: Sequence[Path], sql: str) -> pd.DataFrame:
    """Return the rows of an SQL query over the tables of runs.

    The tables are `cases` and those of the record's schema, each with a first column `run`, the name of the run's
    directory. A table that no run has is empty. Only the files of tables that the query names are opened.

    Args:
        paths: directories of runs.
        sql: a query in DuckDB's dialect.

    Raises:
        UserError: DuckDB is missing, the query is wrong, or a table cannot be read.
    """
    try:
        import duckdb
    except ImportError as error:
        raise UserError("queries need DuckDB: pip install 'charact[query]'") from error
    with duckdb.connect(":memory:") as connection:
        _check(paths)
        # Registered frames are found by name only as long as Python has a reference.
        cases = _cases(paths if _names(sql, CASES) else ())
        connection.register(CASES, cases)
        for table in TABLES:
            if table != CASES:
                _add(connection, table, paths if _names(sql, table) else ())
        try:
            rows: pd.DataFrame = connection.sql(sql).df()
        except (duckdb.Error, AttributeError) as error:
            message = str(error).split("\n")[0].rstrip("!") if isinstance(error, duckdb.Error) else "no rows come back"
            raise UserError(f"{message}: the tables are {CASES}, {', '.join(TABLES)}") from error
    return rows


def _names(sql: str, table: str) -> bool:
    """Return whether a query may name a table: whether the word is in it, also in a text or a comment."""
    return re.search(rf"(?i)\b{table}\b", sql) is not None


def _check(paths: Sequence[Path]) -> None:
    """Check that each path is a run.

    Raises:
        UserError: one is not.
    """
    for path in paths:
        if not os.path.isfile(path / "run.json"):
            raise UserError(f"{path} holds no run.json: name a run directory, such as one below runs/")


class _Manifest(msgspec.Struct):
    """The facts of run.json that the table of cases has; the others are not decoded."""

    cases: list[dict[str, Any]]
    name: Any = None
    started: Any = None
    hostname: Any = None


def _cases(paths: Sequence[Path]) -> pd.DataFrame:
    """Return a row per case of each run: its coordinates and its outcome."""
    rows: list[list[Any]] = []
    decoder = msgspec.json.Decoder(_Manifest)
    for path in paths:
        try:
            manifest = decoder.decode((path / "run.json").read_bytes())
            rows += [[path.name, *(getattr(manifest, fact) for fact in _RUN_FACTS),
                      *(case.get(fact) for fact in _FACTS)] for case in manifest.cases]
        except (OSError, msgspec.DecodeError) as error:
            raise UserError(f"{path / 'run.json'} is damaged ({type(error).__name__}): leave this run out") from error
    return pd.DataFrame(rows, columns=["run", *_RUN_FACTS, *_FACTS])


def _add(connection: "duckdb.DuckDBPyConnection", table: str, paths: Sequence[Path]) -> None:
    """Add a view of one table of all runs; the files are read when a query needs them.

    Raises:
        UserError: a file is damaged.
    """
    import duckdb

    files = [str(path / f"{table}.parquet") for path in paths if (path / f"{table}.parquet").is_file()]
    if not files:
        columns = ", ".join(f'NULL AS "{name}"' for name in ["run", *column_names(table)])
        connection.execute(f'CREATE VIEW "{table}" AS SELECT {columns} WHERE false')
        return
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    try:
        connection.execute(
            f'CREATE VIEW "{table}" AS SELECT parse_path(filename)[-2] AS run, * EXCLUDE (filename) '
            f"FROM read_parquet([{listed}], union_by_name = true, filename = true)")
    except duckdb.Error as error:
        raise UserError(f"{str(error).partition(chr(10))[0]}: leave this run out") from error
