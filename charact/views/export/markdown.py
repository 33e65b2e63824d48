"""Items of the document as GitHub-flavored Markdown."""

import re
from collections.abc import Sequence

import pandas as pd

from charact.analysis.compare import Group
from charact.views.document import Action, Answer, Chapter, Item, Line, Lines, Numbers, ShareBar
from charact.views.tables import comparison_tables, difference_tables
from charact.views.tables import format as fmt
from charact.views.tables.gate_tables import gate_table, headline
from charact.views.tables.model import Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~#])")


def document(title: str, tables: Sequence[Table], paragraphs: Sequence[str] = ()) -> str:
    """Return a document of paragraphs, then of tables, each below its caption."""
    lead = [line for paragraph in paragraphs for line in (escaped(paragraph), "")]
    return "\n".join([f"# {escaped(title)}", "", *lead, *(line for table in tables for line in table_lines(table))])


def escaped(text: str) -> str:
    """Escape text for Markdown and HTML, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("&", "&amp;")


def table_lines(table: Table, level: str = "##") -> list[str]:
    """Return the lines of a table below its caption, a heading of this level."""
    rules = ["---:" if column.to_text else "---" for column in table.columns]
    rows = [[column.title for column in table.columns], *([cell.text for cell in row.cells] for row in table.rows)]
    head, *body = (f"| {' | '.join(map(escaped, row))} |" for row in rows)
    caption = [f"{level} {escaped(table.caption)}", ""] if table.caption else []
    note = [escaped(table.note), ""] if table.note else []
    return [*caption, head, f"|{'|'.join(rules)}|", *body, "", *note]


def item_lines(item: Item) -> list[str]:
    """Return the lines of an item of the document; those of text and bars are lines of a list."""
    match item:
        case Answer():
            more = [f"{escaped(item.more)}.", ""] if item.more else []
            return [escaped(item.sentence), "", *(line for number, action in enumerate(item.actions, 1)
                                                  for line in _action_lines(number, action)), "", *more]
        case Line():
            return [f"- {escaped(item.text)}"] if item.text.strip() else []
        case ShareBar():
            parts = "; ".join(f"{part.name} {part.amount}, {fmt.share(part.share_frac)}" for part in item.parts)
            return [f"- {escaped(f'{item.title}: {parts}')}"]
        case Lines():
            return [line for each in item.items for line in item_lines(each)]
        case Chapter():
            return ["", f"## {escaped(item.title)}", "", *item_lines(Lines(item.items)), ""]
    return ["", *table_lines(item.whole if isinstance(item, Numbers) else item, "###")]


def _action_lines(number: int, action: Action) -> list[str]:
    points = {"to do": action.remedy, "saves": action.saving, "where": action.place,
              "evidence": "; ".join(action.evidence), "cases": ", ".join(action.cases)}
    return [f"{number}. {escaped(action.cause)}",
            *(f"   - {title}: {escaped(text)}" for title, text in points.items() if text),
            *([f"   - run: `{action.command.replace('`', '')}`"] if action.command else [])]


def summary(judged: pd.DataFrame, sides: Sequence[Group]) -> str:
    """Return the gate's summary: the outcome, its table, explanations of regressions, and other differences."""
    others = [comparison_tables.context_table(sides), comparison_tables.failed_table(sides),
              comparison_tables.unmatched_table(sides), comparison_tables.disturbed_table(sides)]  # fmt: skip
    tables = [gate_table(judged, sides), *_explanations(judged, sides), *(each for each in others if each is not None)]
    labels = [side.label for side in sides]
    return document(f"charact: {headline(judged)} ({fmt.against(labels) if len(labels) > 1 else labels[0]})", tables)


def _explanations(judged: pd.DataFrame, sides: Sequence[Group]) -> list[Table]:
    worse = judged[(judged["outcome"] == "regression") & ~judged["is_of_value"]]
    found: list[Table] = []
    for side in sides[1:]:
        cases = set(worse.loc[worse["side"] == side.label, "case"])
        explained = difference_tables.explanations(sides[0], side, cases) if cases else []
        found += [table for each in explained for table in each.tables]
    return found
