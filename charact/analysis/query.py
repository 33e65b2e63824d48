"""SQL queries over the tables of many runs, with DuckDB in memory."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pandas as pd
import pyarrow as pa

from charact.analysis.compare.metrics import all_metrics
from charact.analysis.history.index import Index, OnRun, read_index
from charact.analysis.profile.core_use import why_unreliable
from charact.analysis.summary import COLUMNS
from charact.analysis.summary import TABLE as SUMMARY
from charact.core.errors import UserError
from charact.record.manifest_passes import CoreUse
from charact.record.schema import TABLES, Column, column_names
from charact.record.tables import arrow_schema

if TYPE_CHECKING:
    import duckdb

CASES = "cases"
"""Name of the table with a row per case of each run."""
_FACTS = ("case", "workload", "variant", "input_size", "output_size", "batch_size", "mode", "precision", "cache",
          "attention", "lora_rank", "device", "data", "status", "reason")
_UNRELIABLE = "unreliable"
_RUN_FACTS = ("name", "started", "hostname")

RESULTS = "results"
"""Name of the table with a row per metric of each case of each run."""
_RESULT_COLUMNS = {"run": "VARCHAR", "started": "VARCHAR", "commit": "VARCHAR", "machine": "VARCHAR",
                   "torch": "VARCHAR", "case": "VARCHAR", "metric": "VARCHAR", "value": "DOUBLE", "low": "DOUBLE",
                   "high": "DOUBLE", "reason": "VARCHAR", _UNRELIABLE: "VARCHAR"}
_HIGHER = ", ".join(f"'{name}'" for name, metric in sorted(all_metrics().items()) if metric.higher_is_better)
_GOODNESS = f"CASE WHEN metric IN ({_HIGHER}) THEN value ELSE -value END"
_RANKED = """
    SELECT *, count(*) OVER (PARTITION BY "case", metric) AS num_runs FROM results WHERE value IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY "case", metric ORDER BY {order}, started, run) = 1
    ORDER BY "case", metric"""
_CHANGES = f"""
    SELECT "case", metric, lag(run) OVER earlier AS run_before, run, lag(value) OVER earlier AS before, value,
        value / nullif(before, 0) AS ratio,
        CASE WHEN before IS NULL OR value = before THEN 'same'
             WHEN (value > before) = (metric IN ({_HIGHER})) THEN 'better' ELSE 'worse' END AS direction,
        low > lag(high) OVER earlier OR high < lag(low) OVER earlier AS is_outside_intervals,
        lag("commit") OVER earlier AS commit_before, "commit", lag(torch) OVER earlier AS torch_before, torch
    FROM results WHERE value IS NOT NULL
    WINDOW earlier AS (PARTITION BY "case", metric, machine ORDER BY started, run)
    QUALIFY row_number() OVER (PARTITION BY "case", metric, machine ORDER BY started DESC, run DESC) = 1
        AND before IS NOT NULL
    ORDER BY abs(ln(ratio)) DESC NULLS LAST, "case", metric"""
VIEWS = {"best": _RANKED.format(order=f"{_GOODNESS} DESC"), "worst": _RANKED.format(order=_GOODNESS),
         "changes": _CHANGES}
"""Queries over `results`, by the name under which SQL finds them."""


def query(paths: Sequence[Path], sql: str, on_run: OnRun = lambda: None) -> pd.DataFrame:
    """Return the rows of an SQL query over the tables of runs.

    The tables are `cases` and those of the record's schema, each with a column `run`, the name of the run's directory.
    A table that no run has is empty. Only the files of tables that the query names are opened.

    `summary` has a row per case with its headline numbers: see `charact.analysis.summary`. Four tables are computed
    from the metrics of `charact compare`, in its units:

    - results: a row for each run, case and metric, with the 95 % interval of the value within its run (low, high; null
      with the reason), and why its times may be wrong (unreliable; null if nothing is known against them).
    - best, worst: for each case and metric, the row of `results` of the best or worst run, and num_runs, the number of
      runs with a value.
    - changes: for each case, metric and machine, the newest run with a value (value) and the run before it (before,
      run_before), the largest change first. ratio: value / before; direction: better, worse or same;
      is_outside_intervals: the intervals of the two runs do not overlap (null without intervals). Runs of the same code
      may differ as much: `charact compare` judges by repeated runs.

    `on_run` is called for each run whose metrics had to be read; later queries find them in the user's cache.
    """
    try:
        import duckdb
    except ImportError as error:
        raise UserError("queries need DuckDB: pip install 'charact[query]'") from error
    for path in paths:
        if not os.path.isfile(path / "run.json"):
            raise UserError(f"{path} holds no run.json: name a run directory, such as one below runs/")
    with duckdb.connect(":memory:") as connection:
        # Registered frames are found by name only as long as Python has a reference.
        cases = _cases(paths if _names(sql, CASES) else ())
        connection.register(CASES, cases)
        for table in TABLES:
            _add(connection, table, paths if _names(sql, table) else ())
        uses_index = any(_names(sql, table) for table in (SUMMARY, RESULTS, *VIEWS))
        index = read_index(paths if uses_index else (), on_run)
        if problem := next((facts.problem for facts in index.runs.values() if facts.problem is not None), None):
            raise UserError(f"{problem}: leave this run out")
        rows_of_summary = [{"run": Path(path).name, **row} for path, facts in index.runs.items()
                           for row in facts.summary]
        schema = arrow_schema([Column("run", "string", "name of the run's directory"), *COLUMNS])
        summary, results = pa.Table.from_pylist(rows_of_summary, schema=schema), _results(index)
        connection.register(SUMMARY, summary)
        connection.register("_results", results)
        columns = ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in _RESULT_COLUMNS.items())
        connection.execute(f"CREATE VIEW {RESULTS} AS SELECT {columns} FROM _results")
        for name, text in VIEWS.items():
            connection.execute(f"CREATE VIEW {name} AS {text}")
        try:
            rows: pd.DataFrame = connection.sql(sql).df()
        except (duckdb.Error, AttributeError) as error:
            message = str(error).split("\n")[0].rstrip("!") if isinstance(error, duckdb.Error) else "no rows come back"
            names = ", ".join((SUMMARY, CASES, RESULTS, *VIEWS, *TABLES))
            raise UserError(f"{message}: the tables are {names}") from error
    return rows


def _names(sql: str, table: str) -> bool:
    """Return whether a query may name a table: whether the word is in it, also in a string literal or a comment."""
    return re.search(rf"(?i)\b{table}\b", sql) is not None


class _Manifest(msgspec.Struct):
    """The facts of run.json that the table of cases has; the others are not decoded."""

    cases: list[dict[str, Any]]
    name: Any = None
    started: Any = None
    hostname: Any = None


def _cases(paths: Sequence[Path]) -> pd.DataFrame:
    """Return a row per case of each run: its coordinates, its outcome, and why its times may be wrong."""
    rows: list[list[Any]] = []
    decoder = msgspec.json.Decoder(_Manifest)
    for path in paths:
        try:
            manifest = decoder.decode((path / "run.json").read_bytes())
            rows += [[path.name, *(getattr(manifest, fact) for fact in _RUN_FACTS),
                      *(case.get(fact) for fact in _FACTS), why_unreliable(msgspec.convert(
                          case.get("passes", {}).get("timing", {}).get("core_use"), CoreUse | None))]
                     for case in manifest.cases]
        except (OSError, msgspec.DecodeError, AttributeError, KeyError, TypeError) as error:
            raise UserError(f"{path / 'run.json'} is damaged ({type(error).__name__}): leave this run out") from error
    return pd.DataFrame(rows, columns=["run", *_RUN_FACTS, *_FACTS, _UNRELIABLE])


def _results(index: Index) -> pd.DataFrame:
    rows: list[list[Any]] = []
    for path, facts in index.runs.items():
        unreliable = {row["case"]: row[_UNRELIABLE] for row in facts.summary}
        rows += [[Path(path).name, facts.started, facts.commit, facts.machine, facts.torch, case, metric, number.value,
                  number.low, number.high, number.reason, unreliable.get(case)]
                 for case, of_case in facts.cases.items() for metric, number in of_case.metrics.items()]
    return pd.DataFrame(rows, columns=list(_RESULT_COLUMNS))


def _add(connection: "duckdb.DuckDBPyConnection", table: str, paths: Sequence[Path]) -> None:
    """Add a view of one table of all runs; the files are read when a query needs them."""
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
