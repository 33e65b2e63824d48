"""The summary of a run as items of the document: what `charact show` prints, as text or as Markdown."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from charact.analysis.profile.case_summary import case_summary
from charact.record.presentable import presentable
from charact.record.reader import Run
from charact.views.case_kind import CaseKind, by_kind
from charact.views.document import Card, Chapter, Item, Line, Lines, Numbers, failure_line
from charact.views.sections.findings import first_findings
from charact.views.tables import format as fmt


def summary(run: Run) -> Lines:
    """Return the summary of all cases of a run: findings, headline numbers, failures, and the card of each case."""
    run = presentable(run)
    cases = case_summary(run)
    if cases.empty:
        return Lines([Line(f"{run.run_id}: {fmt.no_cases(run.partial)}")])
    items = [*first_findings(run)]
    for kind, rows in by_kind(cases):
        items += _cards(run, kind, rows) if kind.summary is None else kind.summary(run)
    return Lines(items)


def _cards(run: Run, kind: CaseKind, cases: Any) -> list[Item]:
    """Return the headline table of the cases that have numbers, the failures, and a chapter for each card."""
    cards, table, _ = kind.overview(run, cases)
    titles = [column.title.lower() for column in table.columns if column.name in kind.first]
    timed = {card.case for card in cards if card.headline is not None}
    rows = [row for row in table.rows if row.case in timed]
    return [*([Numbers(replace(table, rows=rows, note=""), kind.first)] if rows and kind.first else []),
            *(failure_line(card.case, *card.failure) for card in cards if card.failure is not None),
            *(_chapter(card, titles, kind.details(run, card.case)) for card in cards if card.headline is not None)]


def _chapter(card: Card, titles: Sequence[str], details: Sequence[Item]) -> Chapter:
    """Return a card with its details, without the numbers that a headline table with these titles has."""
    assert card.headline is not None
    numbers = [f"{number.name}: {number.text}" for number in card.numbers if number.name.lower() not in titles]
    head = Line((card.headline.text, "strong"), f" {', '.join([card.headline.name, *card.details])}")
    lines = [head, *([Line("; ".join(numbers))] if numbers else [])]
    lines += [Line((text, "warning")) for text in card.warnings]
    return Chapter(card.case, [Lines(lines), *card.bars, *details])
