"""Lines of the terminal's summary that several kinds of cases share."""

import pandas as pd
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table as RichTable
from rich.text import Text

from charact.analysis.common.pass_status import pass_reason
from charact.record.reader import Run
from charact.views.tables import format as fmt
from charact.views.tables.model import Table


def failure(case: pd.Series) -> Text:
    """Return the line of a failed case."""
    status = str(case["status"])
    return Text.assemble((str(case["case"]), "bold"), "  ", (f"{status}: ", "bold red"),
                         fmt.failure(status, case["reason"]))  # fmt: skip


def nothing(run: Run, case: pd.Series, label: str, name: str) -> Text:
    """Return the line with the reason why a case has no bar."""
    reason = pass_reason(run, str(case["case"]), name) or "the record has no data"
    return Text.assemble(f"{label}  ", (fmt.missing(reason), "dim"))


def headline_table(table: Table, *names: str) -> RenderableType:
    """Return the case column and the columns `names` of a table, as far as it has them; the first one in bold.

    A column in which all rows lack a number for the same reason becomes a line below.
    """
    titles = [column.name for column in table.columns]
    places = [titles.index(name) for name in names if name in titles]
    missing = _missing(table, places)
    places = [place for place in places if place not in missing]
    drawn = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    drawn.add_column(table.columns[0].title, overflow="fold")
    for place in places:
        drawn.add_column(table.columns[place].title, justify="right", overflow="fold")
    for row in table.rows:
        cells = [Text(row.cells[place].text, style="" if number else "bold") for number, place in enumerate(places)]
        drawn.add_row(Text(row.cells[0].text), *cells)
    reasons: dict[str, list[str]] = {}
    for place, text in missing.items():
        reasons.setdefault(text, []).append(table.columns[place].title)
    return Group(drawn, *(Text(f"{', '.join(columns)}: {text}", style="dim") for text, columns in reasons.items()))


def _missing(table: Table, places: list[int]) -> dict[int, str]:
    """Return the text of each column but the first that lacks a number in all rows, for the same reason."""
    texts = {place: {row.cells[place].text for row in table.rows} for place in places[1:]}
    return {place: text for place, found in texts.items() if len(found) == 1
            for text in found if fmt.reason_of(text) is not None}


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
