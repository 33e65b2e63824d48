"""The section Kernels: GPU kernels with their launch geometry and counters."""

import json
from functools import partial
from typing import Any

import pandas as pd

from charact.analysis.efficiency.kernels import counted_kernels, top_kernels
from charact.analysis.efficiency.utilization import UTILIZATION_METRICS
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.html.elements.blocks import CASE, missing_cases, why_nothing
from charact.views.section import Section
from charact.views.sections.profile._shared import NUM_TOP
from charact.views.tables import format as fmt
from charact.views.tables.counter_text import counter_name, counter_value
from charact.views.tables.model import Column, Formatter, share_column, table, top

_NO_KERNELS = ("Memcpy", "Memset")
_SEVERAL = "several"
_LEAD = (
    "Kernels on the GPU, slowest first. All launches of a kernel are one row; “several” means that they differ. "
    "The occupancy is estimated from the launch geometry, not counted."
)
_COUNTED = {
    "warp_occupancy_frac": "Occupancy, counted", "warp_execution_efficiency_frac": "Warp efficiency",
    "nonpredicated_efficiency_frac": "Non-predicated", "bandwidth_utilization_frac": "Bandwidth",
    "flop_per_s": "FLOP/s",
}  # fmt: skip
_KERNEL = Column("kernel", "Kernel", wide=True)
_UNMATCHED = "The counters name these kernels differently from the trace, so they have rows of their own."


def _html(run: Run) -> Body:
    rows, note = top(top_kernels(run), NUM_TOP)
    alone = _counted_alone(run)
    if rows.empty:
        return Body(blocks=[Block(note=why_nothing(run, "kernels")), *alone])
    for name in ("grid", "block"):
        rows[name] = rows[name].map(_dimensions).mask(rows["varying"].str.contains(name), _SEVERAL)
    columns = [
        CASE, _KERNEL, Column("num_calls", "Launches", fmt.number, "per iteration"),
        Column("device_s", "Time", fmt.seconds, "on the device, per iteration, under the profiler"),
        share_column("share_frac", "Share", "part of the device time of the case's iteration"),
        Column("occupancy_frac", "Occupancy, estimated", fmt.share, "estimated from launch geometry, not counted",
               _no_geometry),
        *_counted_columns(rows),
        Column("grid", "Grid", None, "blocks", _no_geometry, unbroken=True),
        Column("block", "Block", None, "threads of a block", _no_geometry, unbroken=True),
        _number("registers", "Registers", fmt.number, "of a thread"),
        _number("shared_memory_bytes", "Shared memory", fmt.num_bytes, "of a block"),
    ]  # fmt: skip
    return Body(
        lead=_LEAD,
        blocks=[Block(table=table(rows, "Kernels by time", columns, note)), *alone,
                *missing_cases(run, "kernels", rows["case"])],
    )  # fmt: skip


def _counted_columns(rows: pd.DataFrame) -> list[Column]:
    return [Column(metric, _COUNTED[metric], partial(counter_value, metric),
                   f"{counter_name(metric)}, counted; mean over the kernel's launches by their time",
                   lambda row: "not counted") for metric in UTILIZATION_METRICS if rows[metric].notna().any()]


def _counted_alone(run: Run) -> list[Block]:
    """Return the kernels whose counted names the trace does not have."""
    counted = counted_kernels(run)
    traced = top_kernels(run)
    joined = traced[traced[list(UTILIZATION_METRICS)].notna().any(axis="columns")]
    known = set(zip(joined["case"], joined["kernel"].str.replace(r"\s", "", regex=True), strict=True))
    alone = counted[[key not in known for key in zip(counted["case"], counted["name"], strict=True)]]
    if alone.empty:
        return []
    columns = [
        CASE, _KERNEL,
        Column("kernel_s", "Time", fmt.seconds, "in one iteration, while it was counted", lambda row: "not recorded"),
        *_counted_columns(alone),
    ]  # fmt: skip
    shown, note = top(alone, NUM_TOP)
    return [Block(folded=True, note=_UNMATCHED, table=table(shown, "Kernels that only counters list", columns, note))]


def _dimensions(text: Any) -> str | None:
    return " × ".join(f"{size}" for size in json.loads(text)) if isinstance(text, str) else None


def _no_geometry(row: Any) -> str:
    return "a copy or fill" if row.kernel.startswith(_NO_KERNELS) else "not in the trace"


def _number(name: str, title: str, to_text: Formatter, meaning: str) -> Column:
    """Return a column of numbers, with `several` where launches differ."""
    def text(value: float | None, reason: str | None) -> str:
        return _SEVERAL if reason == _SEVERAL else to_text(value, reason)

    return Column(name, title, text, meaning, lambda row: _SEVERAL if name in row.varying else _no_geometry(row))


SECTION = Section("kernels", "Kernels", 160, _html, ("kernels",), ("kernels",))
