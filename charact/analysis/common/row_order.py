"""Common order of rows: cases as they ran; stages, phases and categories as in the schema."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from charact.record.reader import Run
from charact.record.schema import LOAD_PHASES, MEMORY_CATEGORIES, PHASES, STAGES


def in_order(frame: pd.DataFrame, run: Run, *columns: str) -> pd.DataFrame:
    """Return the rows sorted by some of the columns case, stage, phase and category; the sort is stable."""
    orders: dict[str, Sequence[str]] = {
        "case": [entry.case for entry in run.entries],
        "stage": STAGES,
        "phase": (*LOAD_PHASES, *PHASES),
        "category": MEMORY_CATEGORIES,
    }
    ranks = {column: {value: rank for rank, value in enumerate(orders[column])} for column in columns}
    keys = [frame[column].map(ranks[column]).to_numpy(dtype="float64", na_value=np.nan) for column in columns]
    return frame.take(np.lexsort(keys[::-1])).reset_index(drop=True)
