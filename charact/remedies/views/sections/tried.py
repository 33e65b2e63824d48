"""The section Remedies tried: what `charact try` measured, in the report of its first run."""

from dataclasses import replace

from charact.record.reader import Run
from charact.remedies.tried import read_tried
from charact.remedies.views.answer import answer, notes, tried_table, untried
from charact.views.document import Block, Body
from charact.views.section import Section
from charact.views.tables.model import text_table

_HOW = ("Each remedy ran in fresh processes, by turns with the unchanged program, with the same seed; intervals allow "
        "for stopping early. What helped was combined, and the combination was measured again on fresh turns.")


def _html(run: Run) -> Body:
    facts = read_tried(run.path)
    assert facts is not None
    blocks = [Block(table=tried_table(facts), note=" ".join([_HOW, *notes(facts)]))]
    if left := untried(facts):
        rows = replace(text_table(["Remedy", "Reason"], left, 2), caption="Not tried")
        blocks.append(Block(folded=True, table=rows))
    return Body(lead=answer(facts), blocks=blocks)


SECTION = Section("remedies", "Remedies tried", 4, _html, shows=lambda run: read_tried(run.path) is not None)
