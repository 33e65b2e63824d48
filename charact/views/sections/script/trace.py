"""The section How phases were found, for imported traces."""

from charact.analysis.common.script_attribution import attribution, blind_spots, is_imported, phase_evidence
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.html.elements.blocks import CASE, PHASE
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, share_column, table

_LEAD = (
    "Times are those of the trace, so they include the profiler’s overhead, which lengthens short operators. Where "
    "the trace has no phase marks of charact, phases are inferred from marks of loaders and optimizers, module calls, "
    "calls of backward, and autograd’s nodes. On a device, a phase begins when the device has finished all work "
    "launched before it, and ends when it has finished the work of the phase, as with CUDA events. Time of the device "
    "in communication alone is a phase; communication that overlaps other work belongs to the phase of that work. "
    "Traces hold no batch size: for samples/s, divide yours by the time of an iteration."
)


def _html(run: Run) -> Body:
    columns = [
        CASE,
        Column("num_iterations", "Iterations", fmt.number, "in the trace"),
        share_column("attributed_frac", "Attributed", "part of the iterations' time in another phase than “other”"),
        Column("inferred_frac", "Inferred", fmt.share, "part of the iterations' time without a mark of charact"),
    ]  # fmt: skip
    blocks = [Block(table=table(attribution(run), "How phases were found", columns))]
    evidence = phase_evidence(run)
    if len(evidence):
        columns = [CASE, PHASE, Column("evidence", "Found by")]
        blocks.append(Block(table=table(evidence, "Evidence for each phase", columns)))
    spots = blind_spots(run)
    if len(spots):
        blocks.append(Block(table=table(spots, "Not observed", [CASE, Column("blind_spot", "What")])))
    return Body(lead=_LEAD, blocks=blocks)


SECTION = Section("trace", "How phases were found", 115, _html, shows=is_imported)
