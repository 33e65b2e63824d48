"""One order of rows for all tables: cases as they ran, phases as in an iteration, categories as in the schema."""

from collections.abc import Sequence

import pandas as pd

from charact.schema import MEMORY_CATEGORIES, PHASES
from charact.store import Run


def in_order(frame: pd.DataFrame, run: Run, *columns: str) -> pd.DataFrame:
    """Rows ordered by the columns named, of case, phase and category; rows that tie stay as they were."""
    orders: dict[str, Sequence[str]] = {
        "case": [entry["case"] for entry in run.manifest["cases"]],
        "phase": PHASES,
        "category": MEMORY_CATEGORIES,
    }
    ranks = {column: {value: rank for rank, value in enumerate(orders[column])} for column in columns}
    keys = pd.DataFrame({column: frame[column].map(ranks[column]) for column in columns}, index=frame.index)
    return frame.loc[keys.sort_values(list(columns), kind="stable").index].reset_index(drop=True)
