"""Ranks that a run has, and ranks of the same program that it lacks."""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.ranks.matching import rank_cases
from charact.record.reader import Run

_COLUMNS = ["program", "world_size", "num_ranks", "num_missing", "text"]


@memoize
def rank_presence(run: Run) -> pd.DataFrame:
    """Return the ranks of each program of several ranks.

    Columns: program; world_size, the largest that a rank recorded; num_ranks in the run; num_missing; text, such as
    'ranks 0–3, 5–7 of 8; rank 4 is missing'.
    """
    rows = []
    for program, cases in rank_cases(run).groupby("program", sort=False):
        present, size = sorted(set(cases["rank"])), int(cases["world_size"].max())
        missing = sorted(set(range(size)) - set(present))
        are = "is" if len(missing) == 1 else "are"
        text = f"{_ranges(present)} of {size}" + (f"; {_ranges(missing)} {are} missing" if missing else "")
        rows.append([program, size, len(present), len(missing), text])
    return pd.DataFrame(rows, columns=_COLUMNS).astype({"program": "str", "text": "str"})


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as text: ranks 0–3, 5."""
    starts = [number for number in numbers if number - 1 not in set(numbers)]
    ends = [number for number in numbers if number + 1 not in set(numbers)]
    parts = [f"{start}" if start == end else f"{start}–{end}" for start, end in zip(starts, ends, strict=True)]
    return f"rank{'s' if len(numbers) != 1 else ''} {', '.join(parts)}"
