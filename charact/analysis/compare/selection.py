"""Selection of the cases that views show, and reading of all facts in one pass over the runs."""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

from charact.analysis.compare.matching import Group, matched_cases
from charact.analysis.compare.operator_shares import COMPOSITION
from charact.analysis.compare.pairs import gathered
from charact.analysis.compare.ratios import MEASURED, TIMES, ratios

Places = set[tuple[str, str]]
"""Matched cases, each with the label of a group other than the baseline."""


def most_different(sides: Sequence[Group], num_places: int) -> tuple[Places, int]:
    """Return the cases and groups whose times differ most from the baseline's, and the number of the rest.

    Significant differences come first; then larger differences, whether faster or slower.
    """
    rows = ratios(sides, "case")
    rows = rows.assign(size=np.log(rows["ratio"]).abs().fillna(-1.0))
    chosen = rows.sort_values(["significant", "size"], ascending=False, kind="stable").head(num_places)
    return set(zip(chosen["case"], chosen["side"], strict=True)), len(rows) - len(chosen)


def of_places(frame: pd.DataFrame, places: Places) -> pd.DataFrame:
    """Return the rows of a frame with columns case and side that belong to the given cases and groups."""
    chosen = [place in places for place in zip(frame["case"], frame["side"], strict=True)]
    return frame[pd.Series(chosen, index=frame.index, dtype="bool")]


def in_pair(sides: Sequence[Group], side: Group, cases: Collection[str]) -> set[str]:
    """Return the names that cases have when only one group is compared with the baseline.

    `cases` are names in the comparison of all groups: names depend on the groups compared, see `matched_cases`.
    """
    whole, pair = ({(run, of_run): case for case, label, run, of_run in
                    matched_cases(some)[["case", "side", "run", "run_case"]].itertuples(index=False, name=None)
                    if label == sides[0].label} for some in (sides, [sides[0], side]))  # fmt: skip
    return {name for place, name in pair.items() if whole.get(place) in cases}


def read_times(sides: Sequence[Group], levels: Sequence[str]) -> None:
    """Read the times of all cases, bricks and `levels` in one pass over the runs, and cache them."""
    gathered(sides, [MEASURED, *(TIMES[by] for by in dict.fromkeys(["case", "brick", *levels]))])


def read_parts(sides: Sequence[Group], levels: Sequence[str], cases: Collection[str]) -> None:
    """Read the times of the given cases by `levels` in one pass over the runs, and cache them."""
    gathered(sides, [COMPOSITION, *(TIMES[by] for by in levels)], cases)
