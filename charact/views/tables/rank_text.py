"""Text about ranks that several views share."""

from typing import Any

from charact.views.tables import format as fmt


def verdict(row: Any) -> str:
    """Format a row of `stragglers`: straggler rank 3 in backward, ranks wait for each other for 9 % of the time."""
    if not isinstance(row.verdict, str):
        return fmt.missing(row.reason)
    where = "" if fmt.absent(row.rank) else f" rank {row.rank:.0f} in {row.phase}"
    cost = f"ranks wait for each other for {fmt.share(row.share_frac)} of the iteration"
    return f"{row.verdict}{where}, {cost}"
