"""Lines of the terminal's summary that several kinds of cases share."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pandas as pd
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from charact.analysis.common.pass_status import pass_reason
from charact.record.reader import Run
from charact.views.tables import format as fmt
from charact.views.tables.model import Table, with_footnotes
from charact.views.terminal.named_table import NamedTable

_INDENT = 2
_COMMAND = re.compile("(?P<before>[^`]*) `(?P<command>[^`]+)`")


@dataclass(frozen=True)
class Hanging:
    """A text with a hanging indent, so that one sees where the next text begins."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the text, wrapped to the width that is left."""
        first, *rest = self.text.wrap(console, max(options.max_width - _INDENT, 1))
        yield first
        yield from (Text(" " * _INDENT).append_text(line) for line in rest)


def verdict_lines(label: str, verdict: str, sentences: Iterable[object]) -> RenderableType:
    """Return a line with a label and its verdict, then one for each sentence; values that are no text are left out."""
    lines = [line for text in sentences if isinstance(text, str) for line in sentence_lines(text, "dim")]
    return Group(Hanging(Text.assemble(f"{label}  ", (verdict, "bold"))), *lines)


def sentence_lines(sentence: str, style: str) -> list[RenderableType]:
    """Return a sentence in a style; a command in backticks at its end begins a line of its own, to be copied."""
    found = _COMMAND.fullmatch(sentence)
    texts = [sentence] if found is None else [f"{found['before']}:", found["command"]]
    return [Hanging(Text(text, style=style)) for text in texts]


def failure(case: pd.Series) -> Text:
    """Return the line of a failed case."""
    status = str(case["status"])
    return Text.assemble((str(case["case"]), "bold"), "  ", (f"{status}: ", "bold red"),
                         fmt.failure(status, case["reason"]))  # fmt: skip


def nothing(run: Run, case: pd.Series, label: str, name: str) -> list[RenderableType]:
    """Return a line that says why a case has no bar; no line if all of several cases have the same reason.

    Args:
        run: the run.
        case: row of the case.
        label: text at the start of the line.
        name: of the pass that would have measured the bar.
    """
    reasons = {str(entry["case"]): pass_reason(run, str(entry["case"]), name) for entry in run.manifest["cases"]}
    reason = reasons[str(case["case"])]
    if reason is not None and len(reasons) > 1 and set(reasons.values()) == {reason}:
        return []
    return [Hanging(Text.assemble(f"{label}  ", (fmt.missing(reason or "the record has no data"), "dim")))]


def headline_table(table: Table, *names: str) -> RenderableType:
    """Return the case column and the columns `names` of a table, as far as it has them; the first one in bold.

    A column in which all rows lack a number for the same reason becomes a line below, where other long reasons are too.
    """
    titles = [column.name for column in table.columns]
    places = [titles.index(name) for name in names if name in titles]
    missing = _missing(table, places)
    places = [place for place in places if place not in missing]
    rows = [replace(row, cells=[row.cells[place] for place in [0, *places]]) for row in table.rows]
    shown = with_footnotes(replace(table, rows=rows, note=""), min_cells=1)
    drawn = NamedTable(table.columns[0].title, *(table.columns[place].title for place in places))
    for row in shown.rows:
        name, *cells = (cell.text for cell in row.cells)
        drawn.add_row(Text(name), *(Text(text, style="" if number else "bold") for number, text in enumerate(cells)))
    reasons: dict[str, list[str]] = {}
    for place, text in missing.items():
        reasons.setdefault(text, []).append(table.columns[place].title)
    lines = [Text(f"{', '.join(columns)}: {text}", style="dim") for text, columns in reasons.items()]
    lines += [Text(shown.note, style="dim")] if shown.note else []
    return Group(drawn, *map(Hanging, lines))


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
