"""The type of a kind of case, and the search for all kinds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from charact.analysis.compare import Group
from charact.core.plugins import modules_in
from charact.record.reader import Run
from charact.views.document import Block, Card, Item
from charact.views.html.elements.blocks import RUN
from charact.views.tables.model import Table


class Overview(NamedTuple):
    """The cases of one kind at a glance: the report's first section, and the beginning of the terminal's summary."""

    cards: list[Card]
    table: Table
    lead: str = ""
    """A sentence about the run, before that of the kind."""


class CasePart(NamedTuple):
    """A part of a case's summary for programs: an analysis, whose rows have a column `case`."""

    rows: Callable[[Run], pd.DataFrame]
    """The analysis; with the most important rows of a case first."""
    columns: tuple[str, ...]
    """Columns to keep."""
    whole: bool = False
    """Whether all rows are kept, rather than the first ones."""
    is_list: bool = True
    """Whether a case may have several rows."""


@dataclass(frozen=True)
class CaseKind:
    """A kind of case: which measurement it is, and its headline numbers, which every renderer draws.

    Each file in `views/kinds/` defines one in a variable `KIND`. Cases are rows of `case_summary`.
    """

    name: str
    """The kind in `case_summary`: the name of the pass that the case has taken, unless listed there."""
    order: int
    """Position among the kinds, ascending."""
    overview: Callable[[Run, pd.DataFrame], Overview]
    """Cards and a table of the headline numbers."""
    rows: Callable[[Run], pd.DataFrame]
    """Headline numbers of a run, one row per case, for tables of several runs."""
    tables: Callable[[pd.DataFrame], list[Table]]
    """Tables of several runs, from the rows of all runs, with columns run and position."""
    first: Sequence[str] = ()
    """Columns of the overview's table that head the terminal's summary."""
    answer: Callable[[Run, pd.DataFrame], str] = lambda run, cases: ""
    """A sentence that answers what the cases were measured for, without a capital letter and a full stop."""
    brief: Callable[[Run, pd.DataFrame], Table] | None = None
    """The table that heads the terminal's summary, a row for each case, if it is not that of the overview."""
    cautions: Callable[[Run, str], Sequence[str]] = lambda run, case: []
    """What a case lacks that a reader could take for complete."""
    details: Callable[[Run, str], Sequence[Item]] = lambda run, case: []
    """What follows the card of a case in the terminal's summary."""
    summary: Callable[[Run], Sequence[Any]] | None = None
    """Items of the terminal's summary in place of cards and failures: of series, for instance."""
    lead: str = ""
    """A sentence for the top of the report's first section."""
    parts: Mapping[str, CasePart] = field(default_factory=dict)
    """Parts of a case's summary for programs, by key, in addition to its headline numbers."""
    by_size: Callable[[Run], Mapping[str, "pd.Series[float]"]] = lambda run: {}
    """TensorBoard series by input size: by name, values by case."""
    is_compared: Callable[[Run], bool] = lambda run: False
    """Whether a run is drawn together with other runs, by `side_by_side`."""
    side_by_side: Callable[[Sequence[Run]], list[Block]] = lambda runs: []
    """Figures that show several runs together."""
    compared: Callable[[Sequence[Group]], list[Table]] = lambda sides: []
    """Tables of a comparison, in addition to those of all kinds."""


def takes(cases: pd.DataFrame, column: str, to_text: Callable[[float], str], what: str,
          verbs: tuple[str, str] = ("takes", "take")) -> str:
    """Return a sentence with the range of a column: 4 cases take 36.2 ms to 100 ms an iteration; 1 failed (oom).

    Args:
        cases: a row for each case, with the columns case and status.
        column: name of the column.
        to_text: returns the text of a value.
        what: the end of the sentence.
        verbs: the verb for one case, and for several.
    """
    known = cases[cases[column].notna()]
    states = cases.loc[cases["status"] != "ok", "status"]
    failed = f"{len(states)} of {len(cases)} failed ({', '.join(states.unique())})" if len(states) else ""
    if known.empty:
        return failed
    low, high = to_text(known[column].min()), to_text(known[column].max())
    number = f" {high}" if low == high else f" {low} to {high}"
    subject = f"{known['case'].iloc[0]} {verbs[0]}" if len(known) == 1 else f"{len(known)} cases {verbs[1]}"
    return f"{subject}{number} {what}{failed and f'; {failed}'}"


def in_one_table(headlines: Callable[..., Table]) -> Callable[[pd.DataFrame], list[Table]]:
    """Return a function for `CaseKind.tables`: the headline table of one run, with the run next to the case."""
    return lambda rows: [headlines(rows, RUN)]


def all_kinds() -> list[CaseKind]:
    """Return all kinds of cases in their order."""
    return sorted((module.KIND for module in modules_in("charact.views.kinds")), key=lambda kind: kind.order)


def by_kind(cases: pd.DataFrame) -> list[tuple[CaseKind, pd.DataFrame]]:
    """Return the kinds that are present with their cases; cases of unknown kinds are shown as profiled ones."""
    kinds = all_kinds()
    names = pd.Series(_known(cases["kind"], kinds), cases.index, dtype="str")
    return [(kind, cases[names == kind.name]) for kind in kinds if (names == kind.name).any()]


def shown_as(kinds: Iterable[str]) -> list[str]:
    """Return each kind if views know it, else `profile`: a later version may have added it."""
    return _known(kinds, all_kinds())


def _known(names: Iterable[str], kinds: Sequence[CaseKind]) -> list[str]:
    known = {kind.name for kind in kinds}
    return [name if name in known else "profile" for name in names]
