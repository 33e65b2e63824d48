"""What bounds a case, for the terminal: the verdict, its prize and one thing to try."""

from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from charact.views.tables import format as fmt


def verdict(row: Any) -> RenderableType:
    """A line or a few on what bounds a case, from its row of `bottlenecks`."""
    if pd.isna(row.verdict):
        return Text.assemble("bottleneck  ", (fmt.missing(row.reason), "dim"))
    lines = Text.assemble((fmt.verdict(row), "bold"))
    for text in (row.prize, row.advice):
        if isinstance(text, str):
            lines.append(f"\n{text}", style="dim")
    return lines
