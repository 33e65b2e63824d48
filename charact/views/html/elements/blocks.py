"""Building blocks of sections, and columns that several sections share."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pandas as pd
from markupsafe import Markup

from charact.analysis.common.pass_status import pass_reason
from charact.record.reader import Run
from charact.views.html.elements.charts import Chart
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, without_columns

Legend = list[tuple[str, str]]
"""Names with their colors."""


@dataclass(frozen=True)
class Block:
    """Figures and their table, a table alone, or the reason why there is no data."""

    title: str = ""
    figures: list[Markup] = field(default_factory=list)
    legend: Legend = field(default_factory=list)
    table: Table | None = None
    chart: Chart | None = None
    """A chart that a script draws."""
    note: str = ""
    points: list[tuple[str, str]] = field(default_factory=list)
    """Names, each with explanatory sentences."""
    missing: list[tuple[str, str]] = field(default_factory=list)
    """Cases without data, each with the reason."""
    folded: bool = False
    """Whether figures and table are folded."""
    case: str | None = None
    """The one case that the block is about, for the filter by case."""


class Strip(NamedTuple):
    """A bar of a card: what it divides, and its parts (name, share, color)."""

    title: str
    parts: list[tuple[str, float, str]]


class Meter(NamedTuple):
    """How well a device is used by one measure: its share of the ideal, and the measure in words."""

    share_frac: float
    text: str


@dataclass(frozen=True)
class Card:
    """A case's headline number with its label, details, bars, meters, more numbers, and its verdict.

    `verdict` is a few words, and `advice` the sentences after it. `failure` is the status and reason of a failed case,
    which may have numbers nevertheless. `several` is true if `case` names several cases, so that no filter hides the
    card. `warning` names missing data. The bars of a `doubtful` card are pale.
    """

    case: str
    headline: tuple[str, str] | None = None
    details: list[str] = field(default_factory=list)
    warning: str = ""
    numbers: list[tuple[str, str]] = field(default_factory=list)
    strips: list[Strip] = field(default_factory=list)
    meters: list[Meter] = field(default_factory=list)
    verdict: str = ""
    advice: list[str] = field(default_factory=list)
    failure: tuple[str, str] | None = None
    several: bool = False
    doubtful: bool = False


@dataclass(frozen=True)
class Facts:
    """A titled list of names and values."""

    title: str
    items: list[tuple[str, str]]


@dataclass(frozen=True)
class Body:
    """A section's content, in display order."""

    lead: str = ""
    cards: list[Card] = field(default_factory=list)
    legend: Legend = field(default_factory=list)
    points: list[tuple[str, str]] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    @property
    def reasons(self) -> str:
        """Why the section has no data; empty if it has some."""
        if self.cards or self.facts or self.points or any(
                block.figures or block.chart or block.points or (block.table and block.table.rows)
                for block in self.blocks):
            return ""
        found = [text for block in self.blocks for text in (block.note, *(reason for _, reason in block.missing))]
        return "; ".join(dict.fromkeys(filter(None, found))) or self.lead


CASE = Column("case", "Case", unbroken=True)
RUN = Column("run", "Run", unbroken=True)
PHASE = Column("phase", "Phase")
STATUS = Column("status", "Status", meaning="ok, oom (out of memory), diverged, error or interrupted")
ITERATION = Column("median_s", "Iteration", fmt.seconds, "median wall time of an iteration",
                   reason=lambda row: status_reason(row))  # fmt: skip
SAMPLES = Column("samples_per_s", "Samples/s", fmt.number, "samples / time of the iterations",
                 reason=lambda row: status_reason(row) or fmt.no_samples(row.batch_size))  # fmt: skip
RATE = Column("flop_per_s", "FLOP/s", fmt.flop_rate, "counted FLOP / median iteration time",
              reason=lambda row: status_reason(row) or "not measured")  # fmt: skip
PEAK = Column("peak_bytes", "Peak memory", fmt.num_bytes, "peak of bytes allocated by PyTorch's allocator",
              reason=lambda row: status_reason(row) or "not measured")  # fmt: skip


def without_case(block: Block, case: str) -> Block:
    """Return a block without the name of its run's only case, which the page's head has."""
    named = re.compile(rf"( of |: |^){re.escape(case)}(?![\w-])(: )?")

    def short(text: str) -> str:
        return named.sub("", text)

    shown = block.table
    if shown is not None:
        shown = without_columns(replace(shown, caption=short(shown.caption)), ["case"])
    return replace(block, title=short(block.title), note=short(block.note), table=shown,
                   missing=[(short(name), reason) for name, reason in block.missing],
                   legend=[] if [name for name, _ in block.legend] == [case] else block.legend)


def legend_of(names: Iterable[str], colors: dict[str, str]) -> Legend:
    """Return the colors of the names that occur, in the order of `colors`."""
    present = set(names)
    return [(name.replace("_", " "), color) for name, color in colors.items() if name in present]


def memory_strip(parts: pd.DataFrame) -> Strip:
    """Return the bar of what memory is for at a case's peak, from its rows of `memory_composition`."""
    held = parts[parts["bytes"] > 0]
    return Strip("Memory at the peak", [
        (part.category.replace("_", " "), float(part.share_frac), palette.CATEGORIES[part.category])
        for part in fmt.rows(held)])


def failure_of(status: str, reason: str | None) -> tuple[str, str] | None:
    """Return status and reason of a failed case; None if it did not fail."""
    return None if status == "ok" else (status, fmt.failure(status, reason))


def status_reason(row: object) -> str | None:
    """Return the status of a failed case as the reason for a missing number; its card has the full reason."""
    status = str(getattr(row, "status", "ok"))
    return None if status == "ok" else status


def why_nothing(run: Run, name: str) -> str:
    """Return why no case of a run has data from a pass, each reason once."""
    if not run.manifest["cases"]:
        return fmt.missing("the run has no cases")
    cases = [entry["case"] for entry in run.manifest["cases"]]
    reasons = {pass_reason(run, case, name) or "the record has no data" for case in cases}
    return fmt.missing("; ".join(sorted(reasons)))


def by_first_case(rows: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """Merge rows that differ only in their case; the row names the first case and the number of others."""
    joined = rows.groupby(list(keys), sort=False, dropna=False, as_index=False).agg(
        case=("case", "first"), others=("case", "size"))
    more = [f" and {others - 1} more" if others > 1 else "" for others in joined["others"]]
    return joined.assign(case=joined["case"] + pd.Series(more, dtype="str"))


def missing_cases(run: Run, name: str, present: Iterable[str]) -> list[Block]:
    """Return a block with the reason for each case that a section lacks; none if all are shown."""
    shown = set(present)
    missing = [
        (entry["case"], fmt.missing(pass_reason(run, entry["case"], name) or "the record has no data"))
        for entry in run.manifest["cases"]
        if entry["case"] not in shown
    ]
    return [Block(title="Not shown", missing=missing)] if missing else []
