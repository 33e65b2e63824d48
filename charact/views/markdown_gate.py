"""What the gate found as Markdown, for a pull request: the outcome, then what accounts for each regression."""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.comparing import Side
from charact.views import comparison_tables, difference_tables
from charact.views.gate_tables import gate_table, headline
from charact.views.markdown import document
from charact.views.tables import Table


def summary(judged: pd.DataFrame, sides: Sequence[Side]) -> str:
    """A text that begins with the outcome: the gate's table, explanations of regressions, and what else differs."""
    others = [comparison_tables.context_table(sides), comparison_tables.failed_table(sides),
              comparison_tables.unmatched_table(sides)]  # fmt: skip
    tables = [gate_table(judged, sides), *_explanations(judged, sides), *(each for each in others if each is not None)]
    against = f"{', '.join(side.label for side in sides[1:])} against {sides[0].label}"
    return document(f"charact: {headline(judged)} ({against})", tables)


def _explanations(judged: pd.DataFrame, sides: Sequence[Side]) -> list[Table]:
    worse = judged[judged["outcome"] == "regression"]
    found: list[Table] = []
    for side in sides[1:]:
        cases = set(worse.loc[worse["side"] == side.label, "case"])
        explained = difference_tables.explanations(sides[0], side, cases) if cases else []
        found += [table for each in explained for table in each.tables]
    return found
