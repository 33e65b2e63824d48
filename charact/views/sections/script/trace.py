"""The section of traces that were imported: how their phases were found."""

from charact.analysis.common.script_attribution import attribution, blind_spots, is_imported, phase_evidence
from charact.record.reader import Run
from charact.views.html.elements.blocks import CASE, PHASE, Block, Body
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, share_column, table

_LEAD = (
    "The times are those of the trace: the profiler that wrote it was at work, and lengthens short operators. Where "
    "charact has not marked phases they are inferred: from the marks of loaders and optimizers, calls of modules and "
    "of backward, and autograd’s nodes. On a device a phase lasts from when the device has passed all that was "
    "launched before it to when it has passed what the phase launched, as CUDA events would tell. What the device "
    "spent on communication alone is a phase of its own; communication beside other work belongs to that."
)


def trace(run: Run) -> Body:
    """How much of each trace's time could be told, by what, and what was not there."""
    columns = [
        CASE,
        Column("num_iterations", "Iterations", fmt.number, "in the trace"),
        share_column("attributed_frac", "Attributed", "part of the iterations' time in another phase than “other”"),
        Column("inferred_frac", "Inferred", fmt.share, "part of the iterations' time that no mark of charact covers"),
    ]  # fmt: skip
    blocks = [Block(table=table(attribution(run), "How phases were found", columns))]
    evidence = phase_evidence(run)
    if len(evidence):
        told = [CASE, PHASE, Column("evidence", "Found by")]
        blocks.append(Block(table=table(evidence, "What told each phase", told)))
    spots = blind_spots(run)
    if len(spots):
        blocks.append(Block(table=table(spots, "What could not be seen", [CASE, Column("blind_spot", "Not seen")])))
    return Body(lead=_LEAD, blocks=blocks)


SECTION = Section("trace", "How phases were found", 115, trace, shows=is_imported)
