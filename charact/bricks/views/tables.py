"""Columns, colors and tables of bricks and of constructed models that several views share."""

from typing import Any

import pandas as pd

from charact.views.document import Legend, ShareBar, bar
from charact.views.html.elements.blocks import operator_legend
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, share_column, table

PIECES, BRICKS = "#AAB7C4", "#4477AA"
"""Colors of all segments, and of the distinct ones."""
LAYERS = Column("layers", "Layers", reason=lambda row: "not recorded", wide=True)
SEGMENTS = [
    Column("num_pieces", "Segments", fmt.number, "positions of bricks"),
    Column("num_bricks", "Different", fmt.number, "bricks that differ"),
    share_column("unique_frac", "Unique", "different bricks / segments"),
]  # fmt: skip


def legend_of_types(rows: pd.DataFrame) -> Legend:
    """Return the colors of the groups of operator types of rows."""
    return operator_legend(rows["operator_type"].dropna().astype(str))


def bar_of_types(title: str, rows: pd.DataFrame) -> ShareBar:
    """Return the bar of operator types, from the times and shares of rows."""
    sums = rows.groupby("operator_type", sort=False, as_index=False)[["time_s", "share_frac"]].sum()
    return bar(title, sums, "operator_type", palette.operator_type)


COLORS = {"corrected": "#4477AA", "sequential": "#EE6677", "critical_path": "#CCBB44"}
LABELS = {"corrected": "corrected sum", "sequential": "plain sum", "critical_path": "longest path"}
"""Labels of strategies, the preferred one first."""
STRATEGY = Column("strategy_label", "Strategy", unbroken=True)
NO_INTERVAL = "fewer than 6 rounds"


def reason_of(row: Any) -> str | None:
    """Return in short why a row lacks its latency; the full reason is below the tables."""
    if pd.notna(row.latency_s):
        return None
    return "not corrected" if row.strategy == "corrected" else "not constructed"


MEASURED = Column("measured_s", "Measured", fmt.seconds, "median iteration of the model itself",
                  lambda row: reason_of(row) or "not measured")


def signed_share(value: float | None, reason: str | None = None) -> str:
    """Format an error with its sign: −2.4 %."""
    if value is None or fmt.absent(value):
        return fmt.missing(reason)
    return f"{'−' if value < 0 else '+'}{100 * abs(value):.1f} %"


ERROR = Column("error_frac", "Error", signed_share, "constructed / measured − 1", MEASURED.reason)


def with_labels(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the labels of the strategies to the rows."""
    return rows.assign(strategy_label=rows["strategy"].map(LABELS))


def errors_table(errors: pd.DataFrame, *more: Column) -> Table:
    """Build the table of each strategy's errors over all measured models; `more` columns come first."""
    columns = [
        *more, STRATEGY, Column("mode", "Mode"), Column("g", "G", fmt.number, "largest number of layers in a segment"),
        Column("num_models", "Models", fmt.number, "that were measured"),
        Column("geometric_mean", "Geometric mean", fmt.number, "of constructed / measured"),
        Column("mean_abs_error_frac", "Mean |error|", fmt.share),
        Column("worst_error_frac", "Worst", signed_share), Column("worst_case", "of", unbroken=True),
    ]  # fmt: skip
    return table(with_labels(errors), "Errors over all measured models", columns)


def regression_text(row: Any) -> str:
    """Format a row of `predicted_times`: the share of constructed latencies that is a regression."""
    return (f"{row.num_predicted:,} of {row.num_bricks:,} bricks ({fmt.share(row.share_frac)} of the plain sums) were "
            "not timed: a regression on the other bricks predicts their times. The intervals include its "
            "uncertainty.")  # fmt: skip
