"""The sections of bricks: those of a suite's run, and the reuse of bricks in constructed models."""

from typing import Any

import pandas as pd

from charact.analysis.bricks import record_tables, run_tables
from charact.record.reader import Run
from charact.views.html.elements import bricks as figures
from charact.views.html.elements.blocks import CASE, STATUS, Block, Body, Card, Legend, failure_of, why_nothing
from charact.views.html.elements.brick_scatter import NUM_POINTS, work
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, share_column, table, top

NUM_DRAWN = 20
_NUM_ROWS = 300
_NUM_TYPES = 50
PIECES, BRICKS = "#AAB7C4", "#4477AA"
"""Colours of all pieces, and of those that differ."""
METHODS = {"contextual": "in context: all bricks take turns", "paper": "warm: each repeated back to back"}
_LEAD = (
    "A brick is a row of layers as it stands in a model, without names, weights and place. Its time is the median of "
    "one call over the rounds; times of a training hold the backward pass, and FLOP as well. Bytes held are those "
    "beside the brick’s inputs. Which models the bricks make stands apart, in the suite’s compositions."
)
LAYERS = Column("layers", "Layers", reason=lambda row: "not told", wide=True)


def _no_time(row: Any) -> str | None:
    return row.time_reason if isinstance(row.time_reason, str) else None


def _uncounted(row: Any) -> str:
    return _no_time(row) or "none are counted"


def _not_held(row: Any) -> str:
    return _no_time(row) or "not measured"


def bricks(run: Run) -> Body:
    """Bricks of a suite's run: the slowest, what kinds of layers the time goes to, their work and memory, lengths."""
    found = run_tables.brick_summary(run)
    if found.empty:
        return Body(blocks=[Block(note=why_nothing(run, "bricks"))])
    blocks = []
    for case, rows in found.groupby("case", sort=False):
        timed = rows.dropna(subset=["time_s"])
        blocks += [*_slowest(str(case), rows, timed), *_types(run, str(case)), *_work(str(case), timed),
                   *_lengths(run, str(case))]  # fmt: skip
    return Body(lead=_LEAD, blocks=[*blocks, *_failed(found)])


def _slowest(case: str, rows: pd.DataFrame, timed: pd.DataFrame) -> list[Block]:
    drawn = timed.head(NUM_DRAWN)
    drawn = drawn.assign(name=[f"{row.layers} · {row.brick[:6]}" for row in fmt.rows(drawn)])
    drawing = [] if drawn.empty else [
        figures.bars_by_name(f"Slowest bricks of {case}", drawn, "time_s", "s", "time of one call",
                             lambda row: palette.operator_type(str(row.operator_type)))]  # fmt: skip
    shown, note = top(rows, _NUM_ROWS)
    columns = [
        Column("brick", "Brick", unbroken=True), LAYERS,
        Column("input_shapes", "Inputs", reason=lambda row: "not told", wide=True),
        Column("time_s", "Time", fmt.seconds, "median of one call, all phases", _no_time),
        share_column("share_frac", "Share", "of every brick once"),
        Column("low_s", "95 % from", fmt.seconds, "of the median", lambda row: _no_time(row) or "fewer than 6 rounds"),
        Column("high_s", "95 % to", fmt.seconds, "of the median", lambda row: _no_time(row) or "fewer than 6 rounds"),
        Column("flop", "FLOP", fmt.num_flop, "of one call, 1 MAC = 2 FLOP", _uncounted),
        Column("flop_per_s", "FLOP/s", fmt.flop_rate, "FLOP / time", _uncounted),
        Column("weights_bytes", "Weights", fmt.num_bytes, "weights and buffers that it reads", _not_held),
        Column("peak_bytes", "Peak memory", fmt.num_bytes, "most held at once beside its inputs", _not_held),
        Column("saved_bytes", "Saved", fmt.num_bytes, "held from forward to backward",
               lambda row: _no_time(row) or "no backward pass"),
        Column("num_layers", "Layers", fmt.number, "", lambda row: "not told"),
        Column("num_rounds", "Rounds", fmt.number, "that it has times of", _no_time),
    ]  # fmt: skip
    few = f"Drawn are the {NUM_DRAWN} longest of {len(timed)}." if len(timed) > NUM_DRAWN else ""
    return [Block(
        title=f"Slowest bricks: {case}", case=case, figures=drawing,
        legend=legend_of_types(drawn), table=table(shown, f"Bricks of {case} by time", columns, note), note=few,
    )]  # fmt: skip


def legend_of_types(rows: pd.DataFrame) -> Legend:
    """Colours of the operator types of rows, in the order of the rows."""
    return [(name, palette.operator_type(name)) for name in dict.fromkeys(rows["operator_type"].dropna().astype(str))]


def _types(run: Run, case: str) -> list[Block]:
    rows = run_tables.brick_types(run).query("case == @case")
    if rows.empty:
        return []
    columns = [
        LAYERS, Column("num_bricks", "Bricks", fmt.number, "that differ in sizes or parameters"),
        Column("time_s", "Time", fmt.seconds, "each of them once"),
        share_column("share_frac", "Share", "of the time of all bricks"),
        Column("flop_per_s", "FLOP/s", fmt.flop_rate, "FLOP / time", lambda row: "none are counted"),
    ]  # fmt: skip
    shown, note = top(rows, _NUM_TYPES)
    drawn = rows.groupby("operator_type", sort=False, as_index=False)[["time_s"]].sum().rename(
        columns={"operator_type": "name"}).sort_values("time_s", ascending=False, kind="stable")  # fmt: skip
    drawing = figures.bars_by_name(f"Time by kind of layer: {case}", drawn, "time_s", "s", "every brick once",
                                   lambda row: palette.operator_type(str(row.name)))  # fmt: skip
    return [Block(title=f"Time by layer type: {case}", case=case, figures=[drawing],
                  table=table(shown, f"Time of {case} by layer type", columns, note))]  # fmt: skip


def _work(case: str, timed: pd.DataFrame) -> list[Block]:
    drawn = work(timed)
    if not drawn:
        return []
    note = f"Drawn are the {NUM_POINTS} longest bricks." if len(timed) > NUM_POINTS else ""
    return [Block(title=f"Work and memory: {case}", case=case, figures=drawn, legend=legend_of_types(timed), note=note)]


def _lengths(run: Run, case: str) -> list[Block]:
    rows = run_tables.brick_lengths(run).query("case == @case")
    if len(rows) < 2:  # of single layers there is nothing to tell
        return []
    columns = [Column("num_layers", "Layers", fmt.number), Column("num_bricks", "Bricks", fmt.number)]
    return [Block(title=f"Lengths: {case}", case=case, figures=[figures.lengths(rows, {"num_bricks": BRICKS})],
                  table=table(rows, f"Lengths of the bricks of {case}", columns))]  # fmt: skip


def _failed(rows: pd.DataFrame) -> list[Block]:
    missing = [(row.case, f"{row.brick}: {row.status}: {fmt.failure(row.status, row.reason)}")
               for row in fmt.rows(rows[run_tables.has_failed(rows)])]  # fmt: skip
    return [Block(title="Bricks without a time", missing=missing)] if missing else []


def suite_cards(run: Run) -> list[Card]:
    """A card a case of a suite's run: every brick once, how many there are, and what kinds of layers take the time."""
    types = run_tables.brick_types(run)
    return [_card(row, types[types["case"] == row.case]) for row in fmt.rows(run_tables.suite_summary(run))]


def _card(row: Any, types: pd.DataFrame) -> Card:
    failure = failure_of(row.status, row.reason)
    if pd.isna(row.suite_s):
        return Card(row.case, failure=failure or ("nothing", "the record holds no times of bricks"))
    kinds = types.groupby("operator_type", sort=False)["share_frac"].sum()
    return Card(
        row.case, failure=failure, headline=(fmt.seconds(row.suite_s), "every brick once"),
        details=[METHODS.get(row.method, f"n/a ({row.method})")],
        warning=f"{row.num_failed:.0f} of {row.num_bricks:.0f} bricks have no time" if row.num_failed else "",
        numbers=[("bricks", fmt.number(row.num_bricks)), ("rounds", fmt.number(row.num_rounds, "not told")),
                 ("took", fmt.duration(row.timed_s, "not told"))],
        bar=[(str(kind), float(share), palette.operator_type(str(kind))) for kind, share in kinds.items()],
    )  # fmt: skip


def suites(rows: pd.DataFrame, *more: Column) -> Table:
    """Every suite's run as a whole; `more` columns stand after the case."""
    def untimed(row: Any) -> str:
        return "nothing was timed" if row.status == "ok" else str(row.status)

    columns = [
        CASE, *more, STATUS, Column("suite_s", "Every brick once", fmt.seconds, "sum of the medians", untimed),
        Column("num_bricks", "Bricks", fmt.number), Column("num_failed", "Without a time", fmt.number),
        Column("num_layers", "Layers", fmt.number, "of all bricks", lambda row: "no bricks"),
        Column("num_rounds", "Rounds", fmt.number, "over all bricks", lambda row: "not told"),
        Column("timed_s", "Timing took", fmt.duration, "", lambda row: "not told"),
        Column("set_up_s", "All else took", fmt.duration, "inputs, weights, untimed calls", lambda row: "not told"),
    ]  # fmt: skip
    return table(rows, "Suites of bricks", columns)


def reuse(run: Run) -> Body:
    """How much of constructed models is unique, what repeats, and how long rows of layers are."""
    models = record_tables.brick_reuse(run)
    if models.empty:
        return Body(blocks=[Block(note=why_nothing(run, "construct"))])
    lead = (f"A model is cut into pieces; pieces that are alike are one brick. Of all {len(run.cases)} models’ pieces "
            f"{fmt.share(models['unique_frac'].iloc[-1])} differ, and only these are timed.")  # fmt: skip
    return Body(lead=lead, blocks=[_by_model(models), _by_layers(run), *_piece_lengths(run)])


def _by_model(models: pd.DataFrame) -> Block:
    models = models.assign(case=models["case"].fillna("all models together"))
    columns = [
        CASE, Column("num_layers", "Layers", fmt.number),
        Column("num_pieces", "Pieces", fmt.number, "places of bricks"),
        Column("num_bricks", "Different", fmt.number, "bricks that differ"),
        share_column("unique_frac", "Unique", "different bricks / pieces"),
    ]  # fmt: skip
    together = models[models["case"] == "all models together"]
    return Block(title="Unique share", table=table(pd.concat([together, models.drop(together.index)]),
                                                   "Pieces and different bricks of each model", columns))  # fmt: skip


def _by_layers(run: Run) -> Block:
    rows = record_tables.reuse_by_layers(run)
    columns = [
        LAYERS, Column("num_pieces", "Pieces", fmt.number, "in all models"),
        Column("num_bricks", "Different", fmt.number, "bricks that differ"),
        share_column("unique_frac", "Unique", "different bricks / pieces"),
        Column("num_models", "Models", fmt.number, "that hold one"),
        Column("num_shared", "Shared", fmt.number, "bricks that stand in several models"),
    ]  # fmt: skip
    drawn = rows.head(NUM_DRAWN).assign(name=lambda frame: frame["layers"])
    drawing = figures.counts_by_name("Pieces and different bricks by layer type", drawn,
                                     {"num_pieces": PIECES, "num_bricks": BRICKS})  # fmt: skip
    note = f"The {_NUM_TYPES} most frequent of {len(rows)}." if len(rows) > _NUM_TYPES else ""
    return Block(title="Repeats by layer type", figures=[drawing], legend=_LEGEND,
                 table=table(rows.head(_NUM_TYPES), "Repeats by layer type", columns, note))  # fmt: skip


_LEGEND = [("pieces", PIECES), ("different bricks", BRICKS)]


def _piece_lengths(run: Run) -> list[Block]:
    rows = record_tables.piece_lengths(run)
    if len(rows) < 2:
        return []
    columns = [Column("num_layers", "Layers", fmt.number), Column("num_pieces", "Pieces", fmt.number),
               Column("num_bricks", "Different", fmt.number)]  # fmt: skip
    drawing = figures.lengths(rows, {"num_pieces": PIECES, "num_bricks": BRICKS})
    return [Block(title="Lengths of pieces", figures=[drawing], legend=_LEGEND,
                  table=table(rows, "Lengths of pieces", columns))]  # fmt: skip
