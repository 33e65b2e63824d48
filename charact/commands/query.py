"""`charact query`."""

from pathlib import Path
from typing import Annotated

import typer

from charact.commands._shared import options as opt
from charact.core.errors import UserError
from charact.core.output import show


def command(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A query in DuckDB's dialect.")],
    runs: opt.Runs = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")] = False,
) -> None:
    """Query the tables of many runs by SQL.

    The tables are `summary`, with the time of an iteration of each case, its interval and why it may be wrong;
    `cases`, with the coordinates and the outcome of each case; those of a record: iterations, whose rows are phases
    of an iteration, operators, memory and others; and four of metrics such as time, throughput and peak memory:
    `results`, the values of each case in each run; `best` and `worst`, the best and the worst run of each case;
    `changes`, the newest run of each case with the run before. Each has a column `run`. "case" is a word of SQL:
    quote it. Needs DuckDB: pip install 'charact[query]'.

    \b
      charact query 'select run, "case", time_s, low_s, high_s from summary order by time_s desc' runs
      charact query "select workload, mode, count(*) from cases group by all" runs
      charact query "from changes where metric = 'time'" runs
      charact query 'select * from memory' sweeps/example/runs --csv
    """  # noqa: D301  (click wants the character itself)
    if not sql.strip():
        raise UserError("SQL is empty: name columns and a table, as in 'select * from cases'")

    from charact.analysis.query import query
    from charact.commands._shared.print_table import print_table
    from charact.commands._shared.runs import finished_runs
    from charact.core.text import spreadsheet_text
    from charact.core.units import digits
    from charact.views.terminal.progress import RunsProgress

    paths = [path for given in runs or [Path("runs")] for path in finished_runs(given)]
    with RunsProgress("Indexing", len(paths), enabled=not (as_json or as_csv)) as progress:
        rows = query(paths, sql, progress.advance)
    if as_json:
        show(*rows.to_json(orient="records", indent=2, date_format="iso").split("\n"))
    elif as_csv:
        texts = rows.map(lambda value: spreadsheet_text(value) if isinstance(value, str) else value)
        show(*texts.to_csv(index=False).rstrip("\n").split("\n"))
    else:
        texts = rows.map(lambda value: digits(value, 6) if isinstance(value, float) else str(value), na_action="ignore")
        print_table(None, list(map(str, rows.columns)), texts.astype(object).fillna("–").to_numpy().tolist())
