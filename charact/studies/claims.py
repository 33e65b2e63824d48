"""Claims of publications against the values here: the rule that decides, and the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pandas as pd

from charact.core.units import digits
from charact.views.document import Block
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, table, with_footnotes

TOLERANCE_FRAC = 0.1
"""Largest deviation from a published value that agrees, for a value without an interval."""

_NO_NUMBER = "a statement, or a figure without numbers"
RULE = ("A published number agrees if the 95 % interval here includes it; without an interval, if the deviation is at "
         f"most {100 * TOLERANCE_FRAC:.0f} %. A statement agrees if the value and its interval are on the stated side "
         "of its bound: 1 for ratios, 0.99 for R², 0 for slopes. If a number was published, too, the statement agrees "
         "in direction only.")
"""How a verdict of the table is decided, in sentences."""


@dataclass(frozen=True)
class Claim:
    """A claim of a publication, and its test.

    Of `published`, agrees: the value's interval includes it, or the value without an interval deviates by at most
    `TOLERANCE_FRAC`. Of `above` or `below`, agrees: value and interval are above or below `bound`.
    """

    name: str
    text: str
    test: Literal["published", "above", "below"]
    measure: str
    """What the value is."""
    source: str
    """Where it is published: a section, table or figure."""
    command: str
    """Command that measures the value."""
    published: float | None = None
    """The published value; None if it is a statement or a figure without numbers."""
    bound: float = 1.0


class Value(NamedTuple):
    """A value here, its 95 % interval if there is one, and the reason if there is no value."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""


def verdict(claim: Claim, here: Value) -> str:
    """Return agrees, does not agree, or n/a with the reason; a statement with a number agrees in direction."""
    if here.value is None or pd.isna(here.value):
        return fmt.missing(here.reason or f"not run: {claim.command}")
    low = here.value if here.low is None else here.low
    high = here.value if here.high is None else here.high
    if claim.test == "published":
        if claim.published is None:
            return fmt.missing("no published number")
        if here.low is None:
            agrees = abs(here.value / claim.published - 1) <= TOLERANCE_FRAC
        else:
            agrees = low <= claim.published <= high
        return "agrees" if agrees else "does not agree"
    if low < claim.bound < high:
        return fmt.missing(f"the interval includes {digits(claim.bound)}")
    if not (low > claim.bound if claim.test == "above" else high < claim.bound):
        return "does not agree"
    return "agrees" if claim.published is None else "agrees in direction"


def claims_block(claims: Sequence[Claim], values: Mapping[str, Value]) -> Block:
    """Return the table of a publication's claims, with the values here by the names of the claims."""
    rows = []
    for claim in claims:
        here = values.get(claim.name, Value())
        rows.append({
            "claim": claim.text, "measure": claim.measure, "published": claim.published, "here": here.value,
            "interval": None if here.low is None or here.high is None else f"{digits(here.low)} – {digits(here.high)}",
            "verdict": verdict(claim, here), "source": claim.source,
            "deviation_frac": None if claim.published is None or here.value is None
            else here.value / claim.published - 1,
            "reason": here.reason or f"not run: {claim.command}"})
    numbers = ["published", "here", "deviation_frac"]
    frame = pd.DataFrame(rows).astype(dict.fromkeys(numbers, "float64") | {"interval": "object"})

    def why(row: object) -> str:
        return str(getattr(row, "reason", "")) if fmt.absent(getattr(row, "here", None)) else _NO_NUMBER

    return Block(title="Claims", table=with_footnotes(table(frame, "Claims of the publication, and the values here", [
        Column("claim", "Claim"),
        Column("measure", "Measure"),
        Column("published", "Published", fmt.number, "", lambda row: _NO_NUMBER),
        Column("here", "Here", fmt.number, "", why),
        Column("interval", "95 % interval", None, "from the scatter of the batches that were run",
               lambda row: why(row) if fmt.absent(row.here) else "this measure has no interval", unbroken=True),
        Column("verdict", "Verdict"),
        Column("deviation_frac", "Deviation", fmt.share, "here / published − 1", why),
        Column("source", "Published in")]), min_cells=1))

