"""The section Flame graph: time, FLOP and memory by the tree of a model's layers."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pandas as pd

from charact.analysis.memory.composition import memory_by_layer
from charact.analysis.profile.layer_tree import iteration_work, nested
from charact.record.reader import Run
from charact.views.charts import LEAST_FRAC, Box, BoxChart, Graph
from charact.views.document import Block, Body
from charact.views.html.elements.blocks import operator_legend
from charact.views.section import Section, body_of
from charact.views.tables import format as fmt
from charact.views.tables import palette

_MEASURES = (
    ("Time", "time_s", "s", "of the time in this graph"), ("FLOP", "flop", "FLOP", "of the counted FLOP"),
    ("Memory", "bytes", "B", "of the peak"),
)  # fmt: skip
"""Name of each graph, its column, unit and whole."""
_LEAD = "The layers of each model, each below the one that contains it. Click a box to zoom in; Escape shows all."
_GROUPS = palette.PHASES | palette.CATEGORIES
_INSTEAD = "The tables Layers, Operators and Memory have the numbers."


def _html(run: Run) -> Body:
    work, held = iteration_work(run), memory_by_layer(run)
    types: dict[str, dict[str, str]] = defaultdict(dict)
    for row in fmt.rows(run.layers.dropna(subset=["layer_type"])):
        types[row.case][row.layer] = row.layer_type
    blocks = []
    for case, rows in work.groupby("case", sort=False):
        blocks += _block(str(case), rows, held[held["case"] == case], types[str(case)])
    return body_of(run, "operators", _LEAD, blocks, [str(block.case) for block in blocks])


def _block(case: str, work: pd.DataFrame, held: pd.DataFrame, types: Mapping[str, str]) -> list[Block]:
    """Return the chart of a case; none without a layer."""
    graphs: list[Graph] = []
    kinds = dict(zip(work["layer"], work["operator_type"], strict=True))
    narrow, drawn = [], set()
    for name, column, unit, share_of in _MEASURES:
        rows, group = (held, "category") if column == "bytes" else (work, "phase")
        boxes, num_narrow = nested(rows, group, column, LEAST_FRAC)
        layers = set(boxes["layer"].dropna())
        if not layers:
            continue
        leaves = {layer: kind for layer, kind in kinds.items()
                  if layer in layers - {inner.rpartition(".")[0] for inner in layers}}
        graphs.append(Graph(name, unit, boxes["length"].iloc[0], share_of,
                            [_box(row, types, leaves) for row in fmt.rows(boxes)]))
        drawn |= set(leaves.values())
        narrow += [f"{num_narrow:,} in {name}"] if num_narrow else []
    notes = [f"Boxes below 1/2000 of the whole are left out: {', '.join(narrow)}."] if narrow else []
    legend = operator_legend(kind for kind in kinds.values() if kind in drawn)
    chart = BoxChart(f"Flame graph of {case}", _INSTEAD, graphs)
    return [Block(title=case, case=case, chart=chart, legend=legend, note=" ".join(notes))] if graphs else []


def _box(row: Any, types: Mapping[str, str], leaves: Mapping[str, str]) -> Box:
    """Return the box of a row of `nested`: the color of its phase, category, or operator type if it has no layers."""
    group = row.group.replace("_", " ") if isinstance(row.group, str) else "all"
    if isinstance(row.layer, str):
        detail = ", ".join(filter(None, [types.get(row.layer), group]))
        color = palette.operator_type(leaves[row.layer]) if row.layer in leaves else ""
        return Box(row.depth, row.start, row.length, row.layer, detail, color)
    return Box(row.depth, row.start, row.length, group, "", _GROUPS.get(row.group, ""))


_METHOD = ("Flame graph", (
    "the operator pass’s time, counted FLOP, or memory held at the peak. Empty space below a box is of its own "
    "operators, and below a phase also of time outside operators, such as Python and the data loader. Memory counts "
    "for the layer that ran when it was first seen. A long iteration has fewer snapshots than layers, so that a layer "
    "also has memory of those just before it."))

SECTION = Section("flame-graph", "Flame graph", 152, _html, ("operators", "flop"), ("operators", "flop"),
                  points={"operators": [_METHOD]})
