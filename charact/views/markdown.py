"""Tables as Markdown, as GitHub shows it."""

import re
from collections.abc import Sequence

from charact.views.tables import Table

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~#])")


def document(title: str, tables: Sequence[Table]) -> str:
    """A text of tables, each below its caption."""
    return "\n".join([f"# {escaped(title)}", "", *(line for table in tables for line in _lines(table))])


def escaped(text: str) -> str:
    """Text that shows as it is: in one line, with nothing that Markdown or HTML reads otherwise."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("&", "&amp;")


def _lines(table: Table) -> list[str]:
    rules = ["---:" if column.words else "---" for column in table.columns]
    rows = [[column.title for column in table.columns], *([cell.text for cell in row.cells] for row in table.rows)]
    head, *body = (f"| {' | '.join(map(escaped, row))} |" for row in rows)
    note = [escaped(table.note), ""] if table.note else []
    return [f"## {escaped(table.caption)}", "", head, f"|{'|'.join(rules)}|", *body, "", *note]
