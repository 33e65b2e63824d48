"""The section Reuse of bricks, for constructed models."""

import pandas as pd

from charact.bricks.analysis.tables import layer_reuse, model_reuse, record_pieces
from charact.bricks.views import figures
from charact.bricks.views.tables import BRICKS, LAYERS, PIECES, SEGMENTS
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.html.elements.blocks import CASE, why_nothing
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, table

_NUM_DRAWN = 20
_NUM_TYPES = 50


def reuse(run: Run) -> Body:
    """Build the section: unique share of models, and repeats by layer type."""
    pieces = record_pieces(run)
    if pieces.empty:
        return Body(blocks=[Block(note=why_nothing(run, "construct"))])
    models, layers = model_reuse(pieces), layer_reuse(pieces)
    lead = (f"A model is cut into segments; equal segments are one brick. Of the segments of {len(run.cases)} models, "
            f"{fmt.share(models['unique_frac'].iloc[-1])} are different; only these are timed.")  # fmt: skip
    models = models.assign(case=models["case"].fillna("all models together"))
    by_model = table(pd.concat([models.tail(1), models.iloc[:-1]]), "Segments and different bricks of each model",
                     [CASE, Column("num_layers", "Layers", fmt.number), *SEGMENTS])
    drawing = figures.counts_by_name("Segments and different bricks by layer type",
                                     layers.head(_NUM_DRAWN).rename(columns={"layers": "name"}),
                                     {"num_pieces": PIECES, "num_bricks": BRICKS})  # fmt: skip
    note = f"The {_NUM_TYPES} most frequent of {len(layers)}." if len(layers) > _NUM_TYPES else ""
    by_layers = table(layers.head(_NUM_TYPES), "Repeats by layer type", [
        LAYERS, *SEGMENTS, Column("num_models", "Models", fmt.number, "that contain one"),
        Column("num_shared", "Shared", fmt.number, "bricks of several models")], note)  # fmt: skip
    return Body(lead=lead, blocks=[
        Block(title="Unique share", table=by_model),
        Block(title="Repeats by layer type", figures=[drawing], table=by_layers,
              legend=[("segments", PIECES), ("different bricks", BRICKS)])])  # fmt: skip


SECTION = Section("reuse", "Reuse of bricks", 70, reuse, ("construct",), ("pieces",))
