"""SQL over the tables of many runs, by DuckDB in memory."""

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
    directory. A table that no run has is empty.

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
        cases = _cases(paths)
        connection.register(CASES, cases)
        for table in TABLES:
            if table != CASES:
                _add(connection, table, paths)
        try:
            rows: pd.DataFrame = connection.sql(sql).df()
        except (duckdb.Error, AttributeError) as error:
            message = str(error).split("\n")[0].rstrip("!") if isinstance(error, duckdb.Error) else "no rows come back"
            raise UserError(f"{message}: the tables are {CASES}, {', '.join(TABLES)}") from error
    return rows


def _cases(paths: Sequence[Path]) -> pd.DataFrame:
    """Return a row per case of each run: its coordinates and its outcome."""
    rows: list[list[Any]] = []
    for path in paths:
        if not (path / "run.json").is_file():
            raise UserError(f"{path} holds no run.json: name a run directory, such as one below runs/")
        try:
            manifest = msgspec.json.decode((path / "run.json").read_bytes())
            rows += [[path.name, *(manifest.get(fact) for fact in _RUN_FACTS), *(case.get(fact) for fact in _FACTS)]
                     for case in manifest["cases"]]
        except (OSError, msgspec.DecodeError, KeyError, AttributeError, TypeError) as error:
            raise UserError(f"{path / 'run.json'} is damaged ({type(error).__name__}): leave this run out") from error
    return pd.DataFrame(rows, columns=["run", *_RUN_FACTS, *_FACTS])


def _add(connection: "duckdb.DuckDBPyConnection", table: str, paths: Sequence[Path]) -> None:
    """Add a view of one table of all runs; the files are read when a query needs them."""
    files = [str(path / f"{table}.parquet") for path in paths if (path / f"{table}.parquet").is_file()]
    if not files:
        columns = ", ".join(f'NULL AS "{name}"' for name in ["run", *column_names(table)])
        connection.execute(f'CREATE VIEW "{table}" AS SELECT {columns} WHERE false')
        return
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    connection.execute(
        f'CREATE VIEW "{table}" AS SELECT parse_path(filename)[-2] AS run, * EXCLUDE (filename) '
        f"FROM read_parquet([{listed}], union_by_name = true, filename = true)")
