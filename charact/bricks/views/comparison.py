"""Tables of suites in comparisons."""

from collections.abc import Sequence

from charact.analysis.compare import Group
from charact.bricks.analysis.compare.speedups import brick_means, unmatched_bricks
from charact.views.tables import format as fmt
from charact.views.tables.comparison_speedups import CASE, INTERVAL, SIDE, interval, reason, side_column, speedup
from charact.views.tables.model import Column, Table, table

_NUM_UNMATCHED = 200


def brick_tables(sides: Sequence[Group]) -> list[Table]:
    """Return geometric means of the bricks' speedups by layer type, and bricks without a counterpart."""
    means, unmatched = brick_means(sides), unmatched_bricks(sides)
    if means.empty:
        return []
    means["interval"] = [interval(row, 3) for row in fmt.rows(means)]
    columns = [
        CASE, Column("layers", "Bricks of", wide=True), *side_column(sides), Column("num_bricks", "Bricks", fmt.number),
        Column("speedup", "Geometric mean", speedup, "of the speedups of the bricks: above 1 is faster", reason),
        INTERVAL,
    ]  # fmt: skip
    lacking = [CASE, Column("brick", "Brick", wide=True), SIDE, Column("missing_in", "Missing in", unbroken=True),
               Column("why", "Why")]  # fmt: skip
    found = [table(means, "Geometric means of the bricks’ speedups", columns)]
    if unmatched.empty:
        return found
    shown = unmatched.groupby(["case", "side", "missing_in"], sort=False).head(_NUM_UNMATCHED)
    left_out = len(unmatched) - len(shown)
    note = f"The {_NUM_UNMATCHED} slowest of each group; {left_out} more." if left_out else ""
    return [*found, table(shown, "Bricks without a counterpart", lacking, note)]
