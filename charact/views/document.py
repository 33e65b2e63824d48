"""What views show, as data: built once by kinds of cases and by sections, and drawn by one renderer each.

`html/` draws cards and sections, `terminal/renderer.py` cards with their items, `export/` tables as Markdown. Texts are
plain: a renderer escapes them and adds its own marks.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import pandas as pd

from charact.views.charts import BoxChart, Chart
from charact.views.tables import format as fmt
from charact.views.tables.model import Table, with_footnotes, without_columns

Tone = Literal["", "strong", "dim", "warning", "failure", "good", "place"]
"""How a text stands out; a renderer chooses the color."""
Legend = list[tuple[str, str]]
"""Names with their colors."""
Points = list[tuple[str, str]]
"""Names, each with explanatory sentences."""


class Number(NamedTuple):
    """A number as text with its unit, or as n/a with the reason, and its name."""

    name: str
    text: str


class Part(NamedTuple):
    """A part of a bar: its name, its share of the whole, its color as #RRGGBB, and its amount as text."""

    name: str
    share_frac: float
    color: str
    amount: str = ""


class ShareBar(NamedTuple):
    """A stacked bar: what it divides, and its parts in order."""

    title: str
    parts: Sequence[Part]


class Meter(NamedTuple):
    """How well a device is used by one measure: its share of the ideal, and the measure in words."""

    share_frac: float
    text: str


class Line:
    """A paragraph: texts, and pairs of a text and its tone."""

    def __init__(self, *spans: str | tuple[str, Tone]) -> None:
        self.spans: list[tuple[str, Tone]] = [(span, "") if isinstance(span, str) else span for span in spans]

    @property
    def text(self) -> str:
        """The text without tones."""
        return "".join(text for text, _ in self.spans)


@dataclass(frozen=True)
class Lines:
    """Items without space between them, below each other."""

    items: Sequence["Item"]


@dataclass(frozen=True)
class Numbers:
    """A table for narrow screens: the names of its rows, and the columns `names` after the first one, or all.

    A number that all rows lack for one reason becomes a line below. The first column after the name is the most
    important one if `strong`.
    """

    table: Table
    names: Sequence[str] = ()
    strong: bool = True

    @property
    def whole(self) -> Table:
        """The table of the first column and the columns `names`, with long reasons below it."""
        dropped = [column.name for column in self.table.columns[1:] if self.names and column.name not in self.names]
        return with_footnotes(without_columns(self.table, dropped))


@dataclass(frozen=True)
class Chapter:
    """Items below a title."""

    title: str
    items: Sequence["Item"]


@dataclass(frozen=True)
class Action:
    """What to do: a cause of lost time or memory, its remedy, what that saves, where, in which cases, and evidence."""

    cause: str
    remedy: str
    saving: str = ""
    place: str = ""
    cases: Sequence[str] = ()
    evidence: Sequence[str] = ()
    command: str = ""
    """A command to copy."""


@dataclass(frozen=True)
class Answer:
    """The answer to what a run was made for: a sentence, the first things to do, and where to read more."""

    sentence: str
    actions: Sequence[Action] = ()
    more: str = ""


Item: TypeAlias = Line | ShareBar | Lines | Numbers | Table | Chapter | Answer
"""Content of a summary, in the order of reading."""


@dataclass(frozen=True)
class Card:
    """A case's headline number with its label, details, bars, meters, more numbers, and its verdict.

    `verdict` is a few words, and `advice` the sentences after it. `failure` is the status and reason of a failed case,
    which may have numbers nevertheless. `several` is true if `case` names several cases, so that no filter hides the
    card. `warnings` say what is missing or wrong. The bars of a `doubtful` card are pale.
    """

    case: str
    headline: Number | None = None
    details: Sequence[str] = ()
    warnings: Sequence[str] = ()
    numbers: Sequence[Number] = ()
    bars: Sequence[ShareBar] = ()
    meters: Sequence[Meter] = ()
    verdict: str = ""
    advice: Sequence[str] = ()
    failure: tuple[str, str] | None = None
    several: bool = False
    doubtful: bool = False


@dataclass(frozen=True)
class Block:
    """Figures and their table, a table alone, or the reason why there is no data."""

    title: str = ""
    figures: Sequence[Chart] = ()
    legend: Legend = field(default_factory=list)
    table: Table | None = None
    chart: BoxChart | None = None
    note: str = ""
    points: Points = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    """Cases without data, each with the reason."""
    folded: bool = False
    """Whether figures and table are folded."""
    case: str | None = None
    """The one case that the block is about, for the filter by case."""


@dataclass(frozen=True)
class Facts:
    """A titled list of names and values."""

    title: str
    items: list[tuple[str, str]]


@dataclass(frozen=True)
class Body:
    """A section's content, in display order."""

    lead: str = ""
    answer: Answer | None = None
    cards: list[Card] = field(default_factory=list)
    legend: Legend = field(default_factory=list)
    points: Points = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    @property
    def reasons(self) -> str:
        """Why the section has no data; empty if it has some."""
        if self.cards or self.facts or self.points or any(
                block.figures or block.chart or block.points or (block.table and block.table.rows)
                for block in self.blocks):
            return ""
        texts = [text for block in self.blocks for text in (block.note, *(reason for _, reason in block.missing))]
        return "; ".join(dict.fromkeys(filter(None, texts))) or self.lead


_COMMAND = re.compile("(?P<before>[^`]*) `(?P<command>[^`]+)`")
_LEVELS = "▁▂▃▄▅▆▇█"
_WIDEST_SPARKLINE = 20


def bar(title: str, rows: pd.DataFrame, name: str, color: Callable[[str], str], to_text: fmt.Formatter = fmt.seconds,
        amount: str = "time_s") -> ShareBar:
    """Return the bar of a frame with the column `share_frac`, a part a row.

    Args:
        title: what the bar divides.
        rows: the frame.
        name: column of the parts' names.
        color: color of a name.
        to_text: text of an amount.
        amount: column of the amounts.
    """
    return ShareBar(title, [
        Part(str(getattr(row, name)).replace("_", " "), float(row.share_frac), color(getattr(row, name)),
             to_text(getattr(row, amount))) for row in fmt.rows(rows)])


def failure_line(case: str, status: str, reason: str) -> Line:
    """Return the line of a failed case."""
    return Line((case, "strong"), "  ", (f"{status}: ", "failure"), reason)


def sentence_lines(sentence: str, tone: Tone) -> list[Line]:
    """Return a sentence in a tone; a command in backticks at its end begins a line of its own, to be copied."""
    found = _COMMAND.fullmatch(sentence)
    texts = [sentence] if found is None else [f"{found['before']}:", found["command"]]
    return [Line((text, tone)) for text in texts]


def verdict_lines(label: str, verdict: str, sentences: Iterable[object]) -> Lines:
    """Return a line with a label and its verdict, then one for each sentence; values that are no text are left out."""
    lines = [line for text in sentences if isinstance(text, str) for line in sentence_lines(text, "dim")]
    return Lines([Line(f"{label}  ", (verdict, "strong")), *lines])


def sparkline(values: Sequence[float]) -> str:
    """Return a character per value, scaled between the lowest and the highest; many values are thinned out."""
    known = [value for value in values if not fmt.absent(value)]
    if not known:
        return ""
    step = max(1, -(-len(known) // _WIDEST_SPARKLINE))
    low, span = min(known), (max(known) - min(known)) or 1.0
    # Counted from the end: the last value is always shown.
    return "".join(_LEVELS[round((value - low) / span * (len(_LEVELS) - 1))] for value in known[::-step][::-1])
