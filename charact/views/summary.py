"""The summary of a run as items of the document: what `charact show` prints, as text or as Markdown."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from charact.analysis.profile.case_summary import case_summary
from charact.record.presentable import presentable
from charact.record.reader import Run
from charact.views.answer import answer
from charact.views.case_kind import CaseKind, by_kind
from charact.views.document import Card, Chapter, Item, Line, Lines, Numbers, failure_line
from charact.views.tables import format as fmt


def summary(run: Run, *, verbose: bool = True) -> Lines:
    """Return the summary of all cases of a run: the answer, headline numbers, and failures.

    If it is verbose, a chapter for each card follows, with bars of phases and memory.
    """
    run = presentable(run)
    cases = case_summary(run)
    if cases.empty:
        return Lines([Line(f"{run.run_id}: {fmt.no_cases(run.partial)}")])
    items: list[Item] = [first] if (first := answer(run)).sentence else []
    kinds = by_kind(cases)
    for kind, rows in kinds:
        items += _cards(run, kind, rows, verbose) if kind.summary is None else kind.summary(run)
    if not verbose and any(kind.summary is None for kind, _ in kinds):
        command = f"charact show {shlex.quote(str(run.path))} --verbose"
        items.append(Line((f"Bars and details of each case: {command}", "dim")))
    return Lines(items)


def _cards(run: Run, kind: CaseKind, cases: Any, verbose: bool) -> list[Item]:
    """Return the headline table of the cases that have numbers, the failures, and a chapter or warnings of each card.

    The table has a row for each case; what a single case lacks is in its chapter.
    """
    cards, table, _ = kind.overview(run, cases)
    brief = kind.brief(run, cases) if kind.brief else replace(table, note="")
    names = [column.name for column in brief.columns[1:]] if kind.brief else kind.first
    titles = [column.title.lower() for column in brief.columns if column.name in names]
    timed = {card.case for card in cards if card.headline is not None}
    rows = [row for row in brief.rows if row.case in timed]
    return [*([Numbers(replace(brief, rows=rows), names)] if rows and names else []),
            *(failure_line(card.case, *card.failure) for card in cards if card.failure is not None),
            *(_chapters(run, kind, cards, titles) if verbose else _warnings(run, kind, cards))]


def _warnings(run: Run, kind: CaseKind, cards: Sequence[Card]) -> list[Line]:
    """Return what of each case may be wrong or lacks: in one line each, or in one for all cases with the same."""
    cases_of: dict[str, list[str]] = {}
    for card in cards:
        for text in (*card.warnings, *kind.cautions(run, card.case)) if card.headline else ():
            cases_of.setdefault(text, []).append(card.case)
    return [Line((f"{', '.join(names)}: {text}", "warning")) for text, names in cases_of.items()]


def _chapters(run: Run, kind: CaseKind, cards: Sequence[Card], titles: Sequence[str]) -> list[Chapter]:
    return [_chapter(card, titles, kind.cautions(run, card.case), kind.details(run, card.case))
            for card in cards if card.headline]


def _chapter(card: Card, titles: Sequence[str], cautions: Sequence[str], details: Sequence[Item]) -> Chapter:
    """Return a card with its details, without the numbers that a headline table with these titles has."""
    assert card.headline is not None
    numbers = [f"{number.name}: {number.text}" for number in card.numbers if number.name.lower() not in titles]
    head = Line((card.headline.text, "strong"), f" {', '.join([card.headline.name, *card.details])}")
    lines = [head, *([Line("; ".join(numbers))] if numbers else [])]
    lines += [Line((text, "warning")) for text in (*card.warnings, *cautions)]
    return Chapter(card.case, [Lines(lines), *card.bars, *details])
