"""The section Summary: the answer, and headline numbers of every case."""

from charact.analysis.profile.case_summary import case_summary
from charact.record.reader import Run
from charact.views.answer import answer
from charact.views.case_kind import by_kind
from charact.views.document import Block, Body, Card
from charact.views.section import Section
from charact.views.tables import format as fmt


def overview(run: Run) -> Body:
    """Build the section: the answer, cards, then tables of all cases, which are folded if each case has a card."""
    cases = case_summary(run)
    if cases.empty:
        return Body(lead=fmt.no_cases(run.partial))
    cards: list[Card] = []
    blocks: list[Block] = []
    failed = int((cases["status"] != "ok").sum())
    leads = [f"{len(cases)} case{'' if len(cases) == 1 else 's'}, {failed} of them failed."] if failed else []
    for kind, rows in by_kind(cases):
        more, table, lead = kind.overview(run, rows)
        is_repeated = len(more) >= len(table.rows)
        cards, blocks = [*cards, *more], [*blocks, Block(table=table, folded=is_repeated)]
        leads += filter(None, [lead, kind.lead])
    return Body(lead=" ".join(leads), answer=answer(run), cards=cards, blocks=blocks)


SECTION = Section("summary", "Summary", 1, overview)
