"""The section Layers."""

from typing import Any

from charact.analysis.common.pass_status import pass_reason
from charact.analysis.efficiency.layers import top_layers
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.html.elements.blocks import CASE, missing_cases, why_nothing
from charact.views.section import Section
from charact.views.sections.profile._shared import flop_columns
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, share_column, table, top

_NUM_TOP = 25


def layers(run: Run) -> Body:
    """Build the section: the slowest layers of each case."""
    rows, note = top(top_layers(run), _NUM_TOP)
    if rows.empty:
        return Body(blocks=[Block(note=why_nothing(run, "operators"))])

    modes = {entry["case"]: entry["mode"] for entry in run.manifest["cases"]}

    def no_time(row: Any) -> str:
        without_operators = "inference" if modes[row.case] == "infer" else "no operators"
        return pass_reason(run, row.case, "operators") or without_operators

    columns = [
        CASE, Column("layer", "Layer"),
        share_column("share_frac", "Share", "part of the operator time of the case's iteration"),
        Column("forward_s", "Forward", fmt.seconds, "per iteration, under the profiler", no_time),
        Column("backward_s", "Backward", fmt.seconds, "per iteration, under the profiler", no_time),
        Column("layer_type", "Type", reason=lambda row: "not recorded"),
        *flop_columns(run, "per iteration, all phases", "FLOP / time of all phases"),
        Column("num_parameters", "Parameters", fmt.number, "without nested layers", lambda row: "not recorded"),
    ]  # fmt: skip
    return Body(
        lead="The slowest layers. A backward operator belongs to the layer of its forward operator.",
        blocks=[Block(table=table(rows, "Layers by time", columns, note)),
                *missing_cases(run, "operators", rows["case"])],
    )  # fmt: skip


SECTION = Section("layers", "Layers", 150, layers, ("operators", "flop"), ("operators", "flop"))
