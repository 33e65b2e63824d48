"""Text of findings: saving, place and evidence."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.findings import LargestPart, recoverable_in_all
from charact.core.units import quantity, share
from charact.views.tables.format import rows as rows_of

_NOTHING = "No cause of lost time above 3 % of the loop, and no growing memory, was recognized"


def saving(row: Any, others: Sequence[Any] = ()) -> str:
    """Return what the remedy of a row of `findings` saves: 3.1 s to 4.9 s, 20.1 % to 31.8 % of the program.

    `others` are rows of other cases of the program with the same remedy, whose time is added.
    """
    seconds, shares = recoverable_in_all([row, *others])
    texts = []
    if seconds is not None:
        most = "at most " if row.basis == "bound" or not seconds[0] else ""
        amounts = [f"{quantity(seconds[0], 's')} to "] if not most else []
        fracs = [f"{share(shares[0])} to "] if not most else []
        texts.append(f"{most}{''.join(amounts)}{quantity(seconds[1], 's')}, {''.join(fracs)}{share(shares[1])} of the "
                     "program")
    if pd.notna(row.recoverable_bytes):
        texts.append(f"{quantity(row.recoverable_bytes, 'B')} of memory")
    return " and ".join(texts) or "an unknown amount"


def basis(row: Any, unknown: str) -> str:
    """Return how the range of a row of `findings` was obtained; `unknown` for a cause that costs memory only."""
    return row.basis if isinstance(row.basis, str) else unknown


def nothing(largest: LargestPart | None) -> str:
    """Return as sentences that there is no finding, and what takes the most time of an iteration."""
    if largest is None:
        return _NOTHING
    details = [f"{share(frac)} of it {where}" for frac, where in (
        (largest.type_frac, largest.operator_type), (largest.line_frac, f"at {largest.line}")) if frac is not None]
    return (f"{_NOTHING}. {share(largest.share_frac)} of an iteration is {largest.phase}"
            + (f": {', '.join(details)}" if details else ""))


def place(row: Any) -> str:
    """Return the place of a row of `findings`: the line with its text, else layer, operator, setting or phase."""
    if isinstance(row.file, str):
        text = f"  {row.text}" if isinstance(row.text, str) else ""
        return f"{row.file}:{row.line:.0f}{text}"
    names = {"layer": row.layer, "operator": row.operator, "setting": row.setting, "phase": row.phase}
    return next((f"{name} {value}" for name, value in names.items() if isinstance(value, str)), "")


def program_parts(rows: pd.DataFrame) -> str:
    """Return the rows of `program_time` as text: of 17.7 s: training 57.1 %, start 8.0 %, ..."""
    largest_first = rows.sort_values("time_s", ascending=False)
    parts = ", ".join(f"{row.part} {share(row.share_frac)}" for row in rows_of(largest_first))
    return f"of the {quantity(float(rows['time_s'].sum()), 's')} of the program: {parts}"


def sentence(text: str) -> str:
    """Return a text as a sentence that begins with a capital letter."""
    return text[:1].upper() + text[1:]
