"""Reuse of bricks within and between models, of a suite or of a record of constructed models.

Only the segments of models are included: optimizer steps and gradient sums have no layers, and decoys are in no model.
`suite_pieces` and `record_pieces` return the segments that the other functions take.
"""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.bricks.run_tables import kind_of_work, layer_text
from charact.bricks.suite.composition import Composition
from charact.bricks.suite.suite import Suite
from charact.record.reader import Run

_COLUMNS = ["case", "brick", "num_layers", "layers"]


def suite_pieces(compositions: Sequence[Composition], suite: Suite) -> pd.DataFrame:
    """Return one row for each segment of models. Columns: case; brick; num_layers; layers, as text.

    Raises:
        UserError: the suite lacks a brick.
    """
    rows = [(each.case, piece.brick, suite.entry(piece.brick)["num_layers"],
             " + ".join(suite.entry(piece.brick)["layer_types"])) for each in compositions for piece in each.pieces]
    return pd.DataFrame(rows, columns=_COLUMNS)


def record_pieces(run: Run) -> pd.DataFrame:
    """Return one row for each segment of constructed models, with the columns of `suite_pieces` and operator_type."""
    pieces = run.pieces
    pieces = pieces[pieces["piece"].notna() & (pieces["phase"] == "forward")]
    return pieces.assign(layers=[layer_text(types) or "not recorded" for types in pieces["layer_types"]],
                         operator_type=[kind_of_work(types) or "other" for types in pieces["layer_types"]])


def model_reuse(pieces: pd.DataFrame) -> pd.DataFrame:
    """Return how often each model repeats its own bricks and shares them with others, in the given order.

    Columns: case, null in the last row (all of several models together); num_layers; num_pieces, segments; num_bricks,
    distinct segments; unique_frac = num_bricks / num_pieces; num_shared, bricks that several models have; shared_frac =
    num_shared / num_bricks.
    """
    num_models = pieces.groupby("brick")["case"].nunique()
    rows = []
    for case, some in [*pieces.groupby("case", sort=False), (None, pieces)]:
        bricks = some["brick"].unique()
        num_shared, unique_frac = int((num_models[bricks] > 1).sum()), len(bricks) / max(1, len(some))
        rows.append([case, some["num_layers"].sum(), len(some), len(bricks), unique_frac, num_shared,
                     num_shared / max(1, len(bricks))])
    return pd.DataFrame(rows if len(rows) > 2 else rows[:-1], columns=[
        "case", "num_layers", "num_pieces", "num_bricks", "unique_frac", "num_shared", "shared_frac"])


def layer_reuse(pieces: pd.DataFrame) -> pd.DataFrame:
    """Return how often sequences of layer types occur in models, the most frequent first.

    Columns: layers; num_pieces; num_bricks, distinct ones; unique_frac; num_models that contain one; num_shared, bricks
    that occur in several models.
    """
    models = pieces.groupby("brick")["case"].nunique()
    rows = []
    for layers, some in pieces.groupby("layers", sort=False):
        bricks = some["brick"].unique()
        rows.append([layers, len(some), len(bricks), len(bricks) / len(some), some["case"].nunique(),
                     int((models[bricks] > 1).sum())])
    found = pd.DataFrame(rows, columns=["layers", "num_pieces", "num_bricks", "unique_frac", "num_models",
                                        "num_shared"])  # fmt: skip
    return found.sort_values("num_pieces", ascending=False, kind="stable", ignore_index=True)


def brick_reuse(pieces: pd.DataFrame) -> pd.DataFrame:
    """Return the number of uses of each brick, the most frequent first.

    Columns: brick; layers; num_uses; num_models; most_in_one, the maximum number of uses in one model.
    """
    in_models = pieces.groupby(["brick", "layers", "case"]).size().groupby(["brick", "layers"])
    found = in_models.agg(num_uses="sum", num_models="size", most_in_one="max").reset_index()
    return found.sort_values(["num_uses", "brick"], ascending=[False, True], ignore_index=True)
