"""What sections are made of, and the columns that several of them share."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from markupsafe import Markup

from charact.analysis.common.pass_status import pass_reason
from charact.record.reader import Run
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, Table

Legend = list[tuple[str, str]]
"""Names with their colours."""


@dataclass(frozen=True)
class Block:
    """Figures and their table, a table alone, or the reason why there is nothing to show."""

    title: str = ""
    figures: list[Markup] = field(default_factory=list)
    legend: Legend = field(default_factory=list)
    table: Table | None = None
    note: str = ""
    points: list[tuple[str, str]] = field(default_factory=list)
    """Names, each with a sentence or more."""
    missing: list[tuple[str, str]] = field(default_factory=list)
    """Cases that are not shown, each with its reason."""
    folded: bool = False
    """Whether figures and table are shown only when asked for."""
    case: str | None = None
    """The one case that the block is about, so that it can be filtered."""


@dataclass(frozen=True)
class Card:
    """A case's headline number and what it is of, details, more numbers, and a bar of parts (name, share, colour).

    `bar_of` is what the parts are of. `failure` is the status and reason of a case that failed; it may have numbers
    none the less. `several` is true where `case` names many together, so that no filter hides them. `warning` says what
    the numbers fall short of.
    """

    case: str
    headline: tuple[str, str] | None = None
    details: list[str] = field(default_factory=list)
    warning: str = ""
    numbers: list[tuple[str, str]] = field(default_factory=list)
    bar: list[tuple[str, float, str]] = field(default_factory=list)
    bar_of: str = "Time"
    failure: tuple[str, str] | None = None
    several: bool = False


@dataclass(frozen=True)
class Facts:
    """A titled list of names and what they are."""

    title: str
    items: list[tuple[str, str]]


@dataclass(frozen=True)
class Body:
    """A section's content, in the order it is shown."""

    lead: str = ""
    cards: list[Card] = field(default_factory=list)
    legend: Legend = field(default_factory=list)
    points: list[tuple[str, str]] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)


CASE = Column("case", "Case", unbroken=True)
PHASE = Column("phase", "Phase")
STATUS = Column("status", "Status", meaning="ok, oom (out of memory), diverged, error or interrupted")
ITERATION = Column("median_s", "Iteration", fmt.seconds, "median wall time of an iteration",
                   reason=lambda row: status_reason(row))  # fmt: skip
SAMPLES = Column("samples_per_s", "Samples/s", fmt.number, "batch size / median iteration time",
                 reason=lambda row: status_reason(row) or fmt.no_samples(row.batch_size))  # fmt: skip
RATE = Column("flop_per_s", "FLOP/s", fmt.flop_rate, "counted FLOP / median iteration time",
              reason=lambda row: status_reason(row) or "not measured")  # fmt: skip
PEAK = Column("peak_bytes", "Peak memory", fmt.num_bytes, "bytes held through PyTorch's allocator at the peak",
              reason=lambda row: status_reason(row) or "not measured")  # fmt: skip


def legend_of(names: Iterable[str], colors: dict[str, str]) -> Legend:
    """The colours of those names that are there, in the order of the colours."""
    present = set(names)
    return [(name.replace("_", " "), color) for name, color in colors.items() if name in present]


def failure_of(status: str, reason: str | None) -> tuple[str, str] | None:
    """Status and reason of a case that failed; None where it did not."""
    return None if status == "ok" else (status, fmt.failure(status, reason))


def status_reason(row: object) -> str | None:
    """Why a case's row lacks a number: its status, where it failed; the full reason stands on its card."""
    status = str(getattr(row, "status", "ok"))
    return None if status == "ok" else status


def why_nothing(run: Run, name: str) -> str:
    """Why no case of a run has anything from a pass, each reason once."""
    if not run.manifest["cases"]:
        return fmt.missing("the run holds no cases")
    cases = [entry["case"] for entry in run.manifest["cases"]]
    reasons = {pass_reason(run, case, name) or "the record holds no rows" for case in cases}
    return fmt.missing("; ".join(sorted(reasons)))


def missing_cases(run: Run, name: str, present: Iterable[str]) -> list[Block]:
    """A block that says of each case a section shows nothing of why that is; none where all are shown."""
    shown = set(present)
    missing = [
        (entry["case"], fmt.missing(pass_reason(run, entry["case"], name) or "the record holds no rows"))
        for entry in run.manifest["cases"]
        if entry["case"] not in shown
    ]
    return [Block(title="Not shown", missing=missing)] if missing else []
