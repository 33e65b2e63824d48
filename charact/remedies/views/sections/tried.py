"""The section Remedies tried: what `charact try` measured, in the report of its first run."""

from charact.record.reader import Run
from charact.remedies.tried import read_tried
from charact.remedies.views.answer import answer, notes, tried_table
from charact.views.document import Block, Body
from charact.views.section import Section

_HOW = ("Each remedy ran in fresh processes, by turns with the unchanged program, with the same seed; intervals allow "
        "for stopping early. What helped was combined, and the combination was measured again on fresh turns.")


def _html(run: Run) -> Body:
    facts = read_tried(run.path)
    assert facts is not None
    return Body(lead=answer(facts), blocks=[Block(table=tried_table(facts), note=" ".join([_HOW, *notes(facts)]))])


SECTION = Section("remedies", "Remedies tried", 6, _html, shows=lambda run: read_tried(run.path) is not None)
