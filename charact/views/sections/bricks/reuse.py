"""The section Reuse of bricks, for constructed models."""

import pandas as pd

from charact.analysis.bricks import record_tables
from charact.record.reader import Run
from charact.views.html.elements import bricks as figures
from charact.views.html.elements.blocks import CASE, Block, Body, why_nothing
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables.brick_tables import BRICKS, LAYERS, PIECES
from charact.views.tables.model import Column, share_column, table

_NUM_DRAWN = 20
_NUM_TYPES = 50


def reuse(run: Run) -> Body:
    """Build the section: unique share of models, repeats by layer type, and lengths of segments."""
    models = record_tables.brick_reuse(run)
    if models.empty:
        return Body(blocks=[Block(note=why_nothing(run, "construct"))])
    lead = (f"A model is cut into segments; equal segments are one brick. Of the segments of {len(run.cases)} models, "
            f"{fmt.share(models['unique_frac'].iloc[-1])} are different; only these are timed.")  # fmt: skip
    return Body(lead=lead, blocks=[_by_model(models), _by_layers(run), *_piece_lengths(run)])


def _by_model(models: pd.DataFrame) -> Block:
    models = models.assign(case=models["case"].fillna("all models together"))
    columns = [
        CASE, Column("num_layers", "Layers", fmt.number),
        Column("num_pieces", "Segments", fmt.number, "positions of bricks"),
        Column("num_bricks", "Different", fmt.number, "bricks that differ"),
        share_column("unique_frac", "Unique", "different bricks / segments"),
    ]  # fmt: skip
    together = models[models["case"] == "all models together"]
    return Block(title="Unique share", table=table(pd.concat([together, models.drop(together.index)]),
                                                   "Segments and different bricks of each model", columns))  # fmt: skip


def _by_layers(run: Run) -> Block:
    rows = record_tables.reuse_by_layers(run)
    columns = [
        LAYERS, Column("num_pieces", "Segments", fmt.number, "in all models"),
        Column("num_bricks", "Different", fmt.number, "bricks that differ"),
        share_column("unique_frac", "Unique", "different bricks / segments"),
        Column("num_models", "Models", fmt.number, "that contain one"),
        Column("num_shared", "Shared", fmt.number, "bricks of several models"),
    ]  # fmt: skip
    drawn = rows.head(_NUM_DRAWN).assign(name=lambda frame: frame["layers"])
    drawing = figures.counts_by_name("Segments and different bricks by layer type", drawn,
                                     {"num_pieces": PIECES, "num_bricks": BRICKS})  # fmt: skip
    note = f"The {_NUM_TYPES} most frequent of {len(rows)}." if len(rows) > _NUM_TYPES else ""
    return Block(title="Repeats by layer type", figures=[drawing], legend=_LEGEND,
                 table=table(rows.head(_NUM_TYPES), "Repeats by layer type", columns, note))  # fmt: skip


_LEGEND = [("segments", PIECES), ("different bricks", BRICKS)]


def _piece_lengths(run: Run) -> list[Block]:
    rows = record_tables.piece_lengths(run)
    if len(rows) < 2:
        return []
    columns = [Column("num_layers", "Layers", fmt.number), Column("num_pieces", "Pieces", fmt.number),
               Column("num_bricks", "Different", fmt.number)]  # fmt: skip
    drawing = figures.lengths(rows, {"num_pieces": PIECES, "num_bricks": BRICKS})
    return [Block(title="Lengths of segments", figures=[drawing], legend=_LEGEND,
                  table=table(rows, "Lengths of segments", columns))]  # fmt: skip


SECTION = Section("reuse", "Reuse of bricks", 70, reuse, ("construct",), ("pieces",))
