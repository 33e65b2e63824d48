"""The section Serving steps: prefill and decode of an inference server, what limits them, and kernels by kind."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from charact.analysis.profile.serving import (
    MIN_PERCENTILE_STEPS,
    serving_gaps,
    serving_graphs,
    serving_kernels,
    serving_kernels_by_step,
    serving_kinds,
    serving_limits,
    serving_steps,
)
from charact.record.reader import Run
from charact.views.charts import stacked_bars
from charact.views.document import Block, Body, Item, Line, Lines, Numbers, Part, ShareBar
from charact.views.html.elements.blocks import CASE, legend_of
from charact.views.section import Scalar, Section
from charact.views.sections.profile._shared import NUM_TOP
from charact.views.tables import finding_text, palette, serving_text
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, share_column, table, top

_LEAD = (
    "A step of an inference server processes prompts (prefill), gives each sequence its next tokens (decode), or does "
    "both (mixed). Steps are known from the scheduler’s annotations, else from graph replays, else from calls of the "
    "model. Their kind is known from the annotation’s requests, else from input shapes, else from the replay of a "
    "whole model’s graph, which is a decode. A step’s time is that on the device, from its first kernel or copy to its "
    "last; without a device, that on the host."
)
_GAP_NOTE = (
    "Between steps, and in the first step before its first work, the device runs no work of a step. Copies count "
    "first, then kernels outside of steps, then calls that wait for a copy. Of the rest, queue is after the launch of "
    "the next step’s first work. Before it, launch is while the host is in a step, and host is outside. Steps that are "
    "known from graph replays alone have no time on the host, so that host counts as launch."
)
_KERNEL_NOTE = "By the operator that launched a kernel, else by the kernel’s name; kernels of a graph by their names."


def _no_kind(row: Any) -> str:
    return str(row.kind_reason)


def _not_named(row: Any) -> str:
    return "not in the annotations"


def _on_host(row: Any) -> str:
    return "no device in the trace"


_KIND = Column("kind", "Steps", reason=_no_kind)
_COLUMNS = [
    _KIND, Column("num_steps", "Number", fmt.number),
    Column("median_s", "Median", fmt.seconds, "time of a step", lambda row: "no work on the device"),
    Column("p90_s", "p90", fmt.seconds, "10 % of the steps took longer",
           lambda row: f"fewer than {MIN_PERCENTILE_STEPS} steps"),
    Column("whole_s", "Since the last step", fmt.seconds, "median time from the end of the steps before to the step’s "
           "end", lambda row: "no work on the device"),
    share_column("share_frac", "Share", "part of the time since the last step, over all steps"),
    share_column("busy_frac", "GPU busy", "share of the time since the last step in which a kernel or copy ran"),
    Column("num_requests", "Requests", fmt.number, "of a step, median", _not_named),
    Column("num_tokens", "Tokens", fmt.number, "that a step processes, median", _not_named),
    Column("num_kernels", "Kernels", fmt.number, "kernels, copies and fills that were launched in a step, median"),
    share_column("graph_frac", "In graphs", "share of the kernels’ time in graph replays"),
]  # fmt: skip
_FIRST = ("num_steps", "median_s", "p90_s", "share_frac", "busy_frac", "num_requests", "graph_frac")
"""Columns of a case's summary."""


def _html(run: Run) -> Body:
    kinds, kernels = serving_kinds(run), serving_kernels(run)
    lead = " ".join(f"{_of(row.case, kinds)}{finding_text.sentence(serving_text.limit(row))}."
                    for row in fmt.rows(serving_limits(run)))
    blocks = [Block(table=table(kinds, "Steps by kind", _COLUMNS_OF_CASES)), *_gaps(run)]
    if len(kernels):
        blocks += [*_kernels(run), _graphs(run)]
    return Body(lead=f"{lead} {_LEAD}", blocks=[*blocks, _steps(run)])


def _of(case: str, kinds: pd.DataFrame) -> str:
    return f"{case}: " if kinds["case"].nunique() > 1 else ""


def _gaps(run: Run) -> list[Block]:
    gaps = serving_gaps(run)
    if gaps.empty:
        return []
    columns = [CASE, Column("cause", "Cause"), Column("time_s", "Time", fmt.seconds, "of all gaps in the trace"),
               Column("mean_s", "Per gap", fmt.seconds, "mean over all gaps"),
               share_column("share_frac", "Share", "part of the time between steps")]
    return [Block(table=table(gaps, "Time between steps by cause", columns, _GAP_NOTE))]


def _kernels(run: Run) -> list[Block]:
    of_steps = serving_kernels_by_step(run)
    several = of_steps["case"].nunique() > 1
    names = of_steps["case"] + ", " + of_steps["steps"] if several else of_steps["steps"]
    chart = stacked_bars("Device time by kind of kernel in the steps", of_steps.assign(name=names),
                         ("name", "kernel_kind", "device_s"), palette.KERNEL_KINDS.__getitem__,
                         "share of the steps’ device time", unit=None)
    columns = [
        CASE, Column("kernel_kind", "Kind of kernel"),
        Column("device_s", "Time", fmt.seconds, "on the device, in the whole trace"),
        share_column("share_frac", "Share", "part of the device time of the trace"),
        Column("num_kernels", "Kernels", fmt.number, "kernels, copies and fills in the trace"),
        share_column("operator_frac", "By operators", "share of the kind’s time that an operator launched"),
        share_column("graph_frac", "In graphs", "share of the kind’s time in graph replays"),
        share_column("step_frac", "In steps", "share of the kind’s time in steps"),
        Column("largest", "Largest kernel", wide=True),
        share_column("largest_frac", "Its share", "part of the kind’s time"),
    ]  # fmt: skip
    rows = serving_kernels(run)
    return [Block(figures=[chart], legend=legend_of(rows["kernel_kind"], palette.KERNEL_KINDS),
                  table=table(rows, "Device time by kind of kernel", columns, _KERNEL_NOTE))]


def _graphs(run: Run) -> Block:
    columns = [
        CASE, Column("graph", "Graph", reason=lambda row: "launched on its own"),
        Column("kernel_kind", "Kind of kernel"),
        Column("device_s", "Time", fmt.seconds, "on the device, in the whole trace"),
        share_column("share_frac", "Share", "part of the graph’s device time"),
        Column("num_kernels", "Kernels", fmt.number, "in all replays"),
    ]  # fmt: skip
    return Block(folded=True, table=table(serving_graphs(run), "Device time by graph", columns))


def _steps(run: Run) -> Block:
    rows, note = top(serving_steps(run).sort_values("time_s", ascending=False, kind="stable"), NUM_TOP)
    columns = [
        CASE, Column("step", "Step", fmt.number, "index, from 0"), _KIND,
        Column("start_s", "Start", fmt.seconds, "on the host, since the trace’s first event"),
        Column("time_s", "Time", fmt.seconds, "of the step", lambda row: "no work on the device"),
        Column("host_s", "On the host", fmt.seconds, "", lambda row: "a graph replay"),
        Column("gap_s", "Before", fmt.seconds, "time since the end of the steps before, in which none ran",
               lambda row: "no work on the device" if pd.isna(row.time_s) else "the first step"),
        Column("num_requests", "Requests", fmt.number, "", _not_named),
        Column("num_tokens", "Tokens", fmt.number, "", _not_named),
        Column("graph", "Graph", reason=lambda row: "several graphs" if row.num_replays else "no graph"),
        Column("evidence", "Known from", wide=True),
    ]  # fmt: skip
    return Block(folded=True, table=table(rows, "Slowest steps", columns, note))


_COLUMNS_OF_CASES = [CASE, *_COLUMNS]


def _summary(run: Run, case: str) -> Sequence[Item]:
    """Return a table of a case's steps, the time between them, and the device's time by kind of kernel."""
    kinds = serving_kinds(run).query("case == @case")
    if kinds.empty:
        return []
    items: list[Item] = [Lines([Line("serving steps"), Numbers(table(kinds, "", _COLUMNS), _FIRST)])]
    bars = (("Time between steps", serving_gaps(run), "cause", "time_s", palette.GAP_CAUSES),
            ("Device time by kind of kernel", serving_kernels(run), "kernel_kind", "device_s", palette.KERNEL_KINDS))
    for title, frame, name, amount, colors in bars:
        rows = frame.query("case == @case")
        if len(rows):
            items.append(ShareBar(title, [
                Part(getattr(row, name), row.share_frac, colors[getattr(row, name)], fmt.seconds(getattr(row, amount)))
                for row in fmt.rows(rows)]))
    return items


def _scalars(run: Run) -> Iterator[Scalar]:
    for row in serving_steps(run).dropna(subset=["time_s"]).to_dict("records"):
        kind = "unknown" if pd.isna(row["kind"]) else row["kind"]
        yield Scalar(f"{row['case']}/serving/{kind}_s", row["step"], row["time_s"])


SECTION = Section("serving-steps", "Serving steps", 42, _html, summary=_summary, scalars=_scalars,
                  shows=lambda run: len(run.table("serving_steps")) > 0)
