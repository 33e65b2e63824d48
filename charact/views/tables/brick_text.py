"""Texts about bricks that terminal and report share."""

from typing import Any

from charact.views.tables import format as fmt


def regression_text(row: Any) -> str:
    """Format a row of `predicted_times`: the share of constructed latencies that is a regression."""
    return (f"{row.num_predicted:,} of {row.num_bricks:,} bricks ({fmt.share(row.share_frac)} of the plain sums) were "
            "not timed: a regression on the other bricks predicts their times. The intervals include its "
            "uncertainty.")  # fmt: skip
