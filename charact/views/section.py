"""The type of a report section, and the search for all sections."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from charact.analysis.common.pass_status import passes_taken
from charact.core.plugins import modules_below
from charact.record.reader import Run
from charact.views.document import Block, Body, Item
from charact.views.html.elements.blocks import missing_cases, why_nothing

Points = Sequence[tuple[str, str]]
"""Names of numbers, each with how the number was obtained."""


class Scalar(NamedTuple):
    """A point of a TensorBoard series; `step` is an iteration, an epoch or an input size."""

    tag: str
    step: int
    value: float


@dataclass(frozen=True)
class Section:
    """A section of the report and of the TensorBoard tab.

    Each file in `views/sections/` or its subfolders defines one in a variable `SECTION`.
    """

    id: str
    """Anchor of the section in the page."""
    title: str
    order: int
    """Position in the report, ascending."""
    html: Callable[[Run], Body]
    passes: tuple[str, ...] = ()
    """The section is shown if a case has taken one of these passes; an empty tuple means always."""
    tables: tuple[str, ...] = ()
    """The section is also shown if one of these tables of the record has rows."""
    shows: Callable[[Run], bool] | None = None
    """Decides whether the section is shown, instead of `passes` and `tables`."""
    summary: Callable[[Run, str], Sequence[Item]] = lambda run, case: []
    """Lines, bars and tables of one profiled case for summaries without sections, such as the terminal's."""
    folded: str = ""
    """Title of the fold in which the report hides the section until it is opened; empty if it is open."""
    summary_order: int | None = None
    """Position in these summaries, if different from `order`."""
    scalars: Callable[[Run], Iterator[Scalar]] = lambda run: iter(())
    """Points for TensorBoard's Time Series."""
    points: Mapping[str, Points] = field(default_factory=dict)
    """For the section Method: how the numbers of each pass were obtained."""
    trace_points: Mapping[str, Points] = field(default_factory=dict)
    """The same for an imported trace."""

    @property
    def is_for_every_run(self) -> bool:
        """Whether the section is shown for every run, also without data."""
        return self.shows is None and not self.passes and not self.tables

    def belongs_to(self, run: Run) -> bool:
        """Return whether the section is shown for a run."""
        if self.shows is not None:
            return self.shows(run)
        taken = passes_taken(run)
        return not self.passes or not taken.isdisjoint(self.passes) or any(len(run.table(name)) for name in self.tables)


def body_of(run: Run, name: str, lead: str, blocks: Sequence[Block], cases: Iterable[str]) -> Body:
    """Return a body with the blocks of a pass, and why it lacks the other cases; without blocks, why there are none."""
    if not blocks:
        return Body(blocks=[Block(note=why_nothing(run, name))])
    return Body(lead=lead, blocks=[*blocks, *missing_cases(run, name, cases)])


def all_sections() -> list[Section]:
    """Return all sections in the order of the report."""
    return sorted((module.SECTION for module in modules_below("charact.views.sections")),
                  key=lambda section: section.order)
