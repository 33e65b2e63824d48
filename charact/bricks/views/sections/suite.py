"""The section Bricks: the bricks of a suite's run."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from charact.bricks.analysis import tables
from charact.bricks.views.figures import NUM_POINTS, work
from charact.bricks.views.tables import LAYERS, legend_of_types
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.figures.bars import bars_by_name
from charact.views.html.elements.blocks import why_nothing
from charact.views.section import Scalar, Section
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, share_column, table, top

NUM_DRAWN = 20
_NUM_ROWS = 300
_NUM_TYPES = 50
_LEAD = (
    "A brick is a sequence of layers of a model, without names, weights and position. Its time is the median of "
    "one call over the rounds; in training, times and FLOP include the backward pass. The suite’s compositions list "
    "the models that contain each brick."
)


def _no_time(row: Any) -> str | None:
    return row.time_reason if isinstance(row.time_reason, str) else None


def _uncounted(row: Any) -> str:
    return _no_time(row) or "none are counted"


def bricks(run: Run) -> Body:
    """Build the section: the slowest bricks, time by layer type, and work."""
    found = tables.brick_summary(run)
    if found.empty:
        return Body(blocks=[Block(note=why_nothing(run, "bricks"))])
    blocks = []
    for case, rows in found.groupby("case", sort=False):
        timed = rows.dropna(subset=["time_s"])
        blocks += [*_slowest(str(case), rows, timed), *_types(run, str(case))]
        if (timed["flop"] > 0).any():
            note = f"The figure shows the {NUM_POINTS} slowest bricks." if len(timed) > NUM_POINTS else ""
            blocks.append(Block(title=f"Work: {case}", case=str(case), figures=[work(timed)],
                                legend=legend_of_types(timed), note=note))
    missing = [(row.case, f"{row.brick}: {row.status}: {fmt.failure(row.status, row.reason)}")
               for row in fmt.rows(found[tables.has_failed(found)])]  # fmt: skip
    blocks += [Block(title="Bricks without a time", missing=missing)] if missing else []
    return Body(lead=_LEAD, blocks=blocks)


def _slowest(case: str, rows: pd.DataFrame, timed: pd.DataFrame) -> list[Block]:
    drawn = timed.head(NUM_DRAWN)
    drawn = drawn.assign(name=[f"{row.layers} · {row.brick[:6]}" for row in fmt.rows(drawn)])
    drawing = [] if drawn.empty else [
        bars_by_name(f"Slowest bricks of {case}", drawn, "time_s", "s", "time of one call",
                     lambda row: palette.operator_type(str(row.operator_type)))]  # fmt: skip
    shown, note = top(rows, _NUM_ROWS)
    columns = [
        Column("brick", "Brick", unbroken=True), LAYERS,
        Column("input_shapes", "Inputs", reason=lambda row: "not recorded", wide=True),
        Column("time_s", "Time", fmt.seconds, "median of one call, all phases", _no_time),
        share_column("share_frac", "Share", "of every brick once"),
        Column("low_s", "95 % from", fmt.seconds, "of the median", lambda row: _no_time(row) or "fewer than 6 rounds"),
        Column("high_s", "95 % to", fmt.seconds, "of the median", lambda row: _no_time(row) or "fewer than 6 rounds"),
        Column("flop", "FLOP", fmt.num_flop, "of one call, 1 MAC = 2 FLOP", _uncounted),
        Column("flop_per_s", "FLOP/s", fmt.flop_rate, "FLOP / time", _uncounted),
        Column("weights_bytes", "Weights", fmt.num_bytes, "weights and buffers that it reads",
               lambda row: _no_time(row) or "not recorded"),
        Column("num_layers", "Layers", fmt.number, "", lambda row: "not recorded"),
        Column("num_rounds", "Rounds", fmt.number, "in which it was timed", _no_time),
    ]  # fmt: skip
    few = f"The figure shows the {NUM_DRAWN} slowest of {len(timed)}." if len(timed) > NUM_DRAWN else ""
    return [Block(
        title=f"Slowest bricks: {case}", case=case, figures=drawing,
        legend=legend_of_types(drawn), table=table(shown, f"Bricks of {case} by time", columns, note), note=few,
    )]  # fmt: skip


def _types(run: Run, case: str) -> list[Block]:
    rows = tables.brick_types(run).query("case == @case")
    if rows.empty:
        return []
    columns = [
        LAYERS, Column("num_bricks", "Bricks", fmt.number, "that differ in sizes or parameters"),
        Column("time_s", "Time", fmt.seconds, "each brick once"),
        share_column("share_frac", "Share", "of the time of all bricks"),
        Column("flop_per_s", "FLOP/s", fmt.flop_rate, "FLOP / time", lambda row: "none are counted"),
    ]  # fmt: skip
    shown, note = top(rows, _NUM_TYPES)
    drawn = rows.groupby("operator_type", sort=False, as_index=False)[["time_s"]].sum().rename(
        columns={"operator_type": "name"}).sort_values("time_s", ascending=False, kind="stable")  # fmt: skip
    drawing = bars_by_name(f"Time by layer type: {case}", drawn, "time_s", "s", "every brick once",
                           lambda row: palette.operator_type(str(row.name)))  # fmt: skip
    return [Block(title=f"Time by layer type: {case}", case=case, figures=[drawing],
                  table=table(shown, f"Time of {case} by layer type", columns, note))]  # fmt: skip


def _scalars(run: Run) -> Iterator[Scalar]:
    for row in tables.suite_times(run).to_dict("records"):
        yield Scalar(f"{row['case']}/suite_s", row["round"], row["suite_s"])


SECTION = Section("bricks", "Bricks", 80, bricks, ("bricks",), ("bricks",), scalars=_scalars)
