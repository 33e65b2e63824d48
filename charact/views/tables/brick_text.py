"""What terminal and report say of bricks in the same words."""

from typing import Any

from charact.views.tables import format as fmt


def predicted_words(row: Any) -> str:
    """How much of constructed latencies is predicted: a row of `predicted_times`."""
    return (f"{fmt.share(row.share_frac)} of the plain sums is of {row.num_predicted:,} of {row.num_bricks:,} bricks "
            "that were not timed: their times are predicted from those of others, and so uncertain as the intervals "
            "tell.")  # fmt: skip
