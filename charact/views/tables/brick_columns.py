"""Columns and colors of bricks that several views share."""

import pandas as pd

from charact.views.html.elements.blocks import Legend
from charact.views.tables import palette
from charact.views.tables.model import Column

PIECES, BRICKS = "#AAB7C4", "#4477AA"
"""Colors of all segments, and of the distinct ones."""
LAYERS = Column("layers", "Layers", reason=lambda row: "not recorded", wide=True)


def legend_of_types(rows: pd.DataFrame) -> Legend:
    """Return the colors of the operator types of rows, in the order of the rows."""
    return [(name, palette.operator_type(name)) for name in dict.fromkeys(rows["operator_type"].dropna().astype(str))]
