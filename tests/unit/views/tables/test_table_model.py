"""Tables as views draw them."""

import pandas as pd

from charact.views.tables import format as fmt
from charact.views.tables.model import Column, table, with_footnotes


def test_a_long_reason_of_several_cells_is_a_footnote() -> None:
    frame = pd.DataFrame({"case": ["a", "b", "c"], "rate": [None, None, 3.0]})
    reason = "the program ended before this pass could begin"
    rate = Column("rate", "Rate", fmt.number, reason=lambda row: reason)
    shown = with_footnotes(table(frame, "Rates", [Column("case", "Case"), rate], "Note."))
    assert [row.cells[1].text for row in shown.rows] == ["n/a [1]", "n/a [1]", "3"]
    assert shown.note == f"Note. [1] {reason}."
    assert [row.cells[1].sort for row in shown.rows] == [None, None, 3.0]
    once = table(frame.iloc[1:], "Rates", [rate])
    assert with_footnotes(once) is once
