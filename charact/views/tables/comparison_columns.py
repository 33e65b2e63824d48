"""Columns that the tables of a comparison share, and their texts."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.compare import Side
from charact.core.units import digits
from charact.views.tables import format as fmt
from charact.views.tables.model import Column

CASE = Column("case", "Case", unbroken=True)
SIDE = Column("side", "Group", unbroken=True)
INTERVAL = Column("interval", "95 % interval", unbroken=True)


def side_column(sides: Sequence[Side]) -> list[Column]:
    """Return the column of the group if there are more than two; the headings name two."""
    return [SIDE] if len(sides) > 2 else []


def reason(row: Any) -> str | None:
    """Return why a row lacks a number; None if it does not."""
    return None if pd.isna(row.reason) else str(row.reason)


def interval(row: Any, significant: int) -> str:
    """Format the 95 % interval of a row, or the reason why there is none."""
    if pd.isna(row.low):
        return fmt.missing(reason(row))
    return f"{digits(row.low, significant)}–{digits(row.high, significant)}"


def speedup(value: float | None, reason: str | None) -> str:
    """Format a speedup as a factor."""
    return fmt.missing(reason) if value is None else digits(value)
