"""Lines of the terminal's summary that several kinds of cases share."""

from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from charact.analysis.common.pass_status import pass_reason
from charact.record.reader import Run
from charact.views.tables import format as fmt


def failure(case: pd.Series) -> Text:
    """Return the line of a failed case."""
    status = str(case["status"])
    return Text.assemble((str(case["case"]), "bold"), "  ", (f"{status}: ", "bold red"),
                         fmt.failure(status, case["reason"]))  # fmt: skip


def nothing(run: Run, case: pd.Series, label: str, name: str) -> Text:
    """Return the line with the reason why a case has no bar."""
    reason = pass_reason(run, str(case["case"]), name) or "the record has no data"
    return Text.assemble(f"{label}  ", (fmt.missing(reason), "dim"))


def headline_table(*titles: str) -> Table:
    """Return an empty table: the case on the left, numbers on the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("case", overflow="fold")
    for title in titles:
        table.add_column(title, justify="right", overflow="fold")
    return table


def add_row(table: Table, case: Any, headline: str, *cells: str) -> None:
    """Append a case, its headline number in bold."""
    table.add_row(Text(str(case)), Text(headline, style="bold"), *(Text(cell) for cell in cells))


def case_block(name: str, line: RenderableType, below: list[RenderableType]) -> list[RenderableType]:
    """Return a case's title and first line, followed by bars and tables."""
    title = Rule(Text(name, style="bold"), align="left", style="dim")
    return [Text(), title, Padding(line, (0, 0, 0, 2)), *(Padding(each, (1, 0, 0, 2)) for each in below)]


def timed(summary: pd.DataFrame, total: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows with a total, and the successful cases without one."""
    timed = summary[total].notna()
    return summary[timed], [str(case) for case in summary[~timed & (summary["status"] == "ok")]["case"]]


def without_rows(cases: list[str]) -> list[RenderableType]:
    """Return a line for each successful case without data."""
    missing = fmt.missing("the record has no data")
    return [Text.assemble((case, "bold"), "  ", (missing, "dim")) for case in cases]
