"""The section Layers."""

from typing import Any

from charact.analysis.common.pass_status import pass_reason
from charact.analysis.efficiency.layers import top_layers
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.html.elements.blocks import CASE
from charact.views.section import Section, body_of
from charact.views.sections.profile._shared import NUM_TOP, flop_columns
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, share_column, table, top

_COMPILED = (" Of compiled code, layers come from the origins of kernels that PyTorch’s compiler keeps: a fused kernel "
             "belongs to the innermost layer that contains all of its operations, or to none.")


def _html(run: Run) -> Body:
    def no_time(row: Any) -> str:
        operators = run.entry(row.case).passes.operators
        without_kernel = {None: "no operators", True: "no kernel of its own",
                          False: "this PyTorch keeps no origins of kernels"}
        return pass_reason(run, row.case, "operators") or without_kernel[operators.kernel_layers]

    def no_backward(row: Any) -> str:
        return "inference" if run.entry(row.case).mode == "infer" else no_time(row)

    rows, note = top(top_layers(run), NUM_TOP)
    rows = rows.sort_values("time_s", ascending=False, kind="stable")
    columns = [
        Column("layer", "Layer"),
        share_column("share_frac", "Share", "part of the operator time of the case's iteration"), CASE,
        Column("forward_s", "Forward", fmt.seconds, "per iteration, under the profiler", no_time),
        Column("backward_s", "Backward", fmt.seconds, "per iteration, under the profiler", no_backward),
        Column("layer_type", "Type", reason=lambda row: "not recorded"),
        *flop_columns(run, "per iteration, all phases", "FLOP / time of all phases"),
        Column("num_parameters", "Parameters", fmt.number, "without nested layers", lambda row: "not recorded"),
    ]  # fmt: skip
    lead = "The slowest layers. A backward operator belongs to the layer of its forward operator."
    if any(entry.passes.operators.kernel_layers for entry in run.entries):
        lead += _COMPILED
    return body_of(run, "operators", lead,
                   [Block(table=table(rows, "Layers by time", columns, note))] if len(rows) else [], rows["case"])


SECTION = Section("layers", "Layers", 150, _html, ("operators", "flop"), ("operators", "flop"))
