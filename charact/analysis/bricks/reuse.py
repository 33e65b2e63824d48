"""Reuse of bricks within and between models.

Only the segments of models are included: optimizer steps and gradient sums have no layers, and decoys are in no model.
"""

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from charact.bricks.suite.composition import Composition
from charact.bricks.suite.index import Suite


def unique_share(compositions: Sequence[Composition], suite: Suite) -> pd.DataFrame:
    """Return the numbers of all and of distinct segments and layers, in one row.

    Columns: num_models; num_layers, of all models; num_pieces, all segments; num_bricks, distinct segments;
    num_unique_layers, layers of distinct segments; unique_pieces_frac = num_bricks / num_pieces; unique_layers_frac =
    num_unique_layers / num_layers (both null without segments).
    """
    pieces = _pieces(compositions, suite)
    bricks = pieces.drop_duplicates("brick")
    found = pd.DataFrame([{
        "num_models": len(compositions), "num_layers": int(pieces["num_layers"].sum()), "num_pieces": len(pieces),
        "num_bricks": len(bricks), "num_unique_layers": int(bricks["num_layers"].sum()),
    }])  # fmt: skip
    return found.assign(unique_pieces_frac=_share(found["num_bricks"], found["num_pieces"]),
                        unique_layers_frac=_share(found["num_unique_layers"], found["num_layers"]))


def model_reuse(compositions: Sequence[Composition], suite: Suite) -> pd.DataFrame:
    """Return how often each model repeats its own bricks and shares them with others, in the given order.

    Columns: case; num_layers; num_pieces, segments; num_bricks, distinct segments; unique_frac = num_bricks /
    num_pieces; num_shared, bricks that another model also has; shared_frac = num_shared / num_bricks.
    """
    pieces = _pieces(compositions, suite)
    num_models = pieces.groupby("brick")["case"].nunique()
    pieces["shared"] = pieces["brick"].map(num_models) > 1
    different = pieces.drop_duplicates(["case", "brick"]).groupby("case")
    found = pd.DataFrame({
        "case": [each.case for each in compositions], "num_layers": [each.num_layers for each in compositions],
        "num_pieces": [len(each.pieces) for each in compositions],
    })  # fmt: skip
    for name, counts in (("num_bricks", different.size()), ("num_shared", different["shared"].sum())):
        found[name] = found["case"].map(counts).fillna(0).astype("int64")
    found["unique_frac"] = _share(found["num_bricks"], found["num_pieces"])
    found["shared_frac"] = _share(found["num_shared"], found["num_bricks"])
    return found[["case", "num_layers", "num_pieces", "num_bricks", "unique_frac", "num_shared", "shared_frac"]]


def brick_reuse(compositions: Sequence[Composition], suite: Suite) -> pd.DataFrame:
    """Return the number of uses of each brick, the most frequent first.

    Columns: brick; num_layers; layer_types, joined by +; num_uses; num_models; most_in_one, the maximum number of
    uses in one model.
    """
    pieces = _pieces(compositions, suite)
    in_models = pieces.groupby(["brick", "case"]).size().groupby("brick")
    found = pieces.drop_duplicates("brick")[["brick", "num_layers", "layer_types"]].copy()
    counted = {"num_uses": in_models.sum(), "num_models": in_models.size(), "most_in_one": in_models.max()}
    for name, counts in counted.items():
        found[name] = found["brick"].map(counts).astype("int64")
    found["layer_types"] = ["+".join(types) for types in found["layer_types"]]
    return found.sort_values(["num_uses", "brick"], ascending=[False, True], ignore_index=True)


def layer_type_share(compositions: Sequence[Composition], suite: Suite) -> pd.DataFrame:
    """Return the number of layers by type, the most frequent first.

    Columns: layer_type; num_layers, in all models; num_unique, in the distinct bricks; unique_frac = num_unique /
    num_layers.
    """
    pieces = _pieces(compositions, suite)
    everywhere = Counter(name for types in pieces["layer_types"] for name in types)
    once = Counter(name for types in pieces.drop_duplicates("brick")["layer_types"] for name in types)
    rows = [{"layer_type": name, "num_layers": number, "num_unique": once[name]}
            for name, number in sorted(everywhere.items(), key=lambda item: (-item[1], item[0]))]  # fmt: skip
    found = pd.DataFrame(rows, columns=["layer_type", "num_layers", "num_unique"])
    return found.assign(unique_frac=_share(found["num_unique"], found["num_layers"]))


def sequence_lengths(compositions: Sequence[Composition], suite: Suite) -> pd.DataFrame:
    """Return the number of segments by number of layers, the shortest first.

    Columns: num_layers; num_pieces, segments in all models; num_bricks, distinct segments; pieces_frac, num_pieces
    as a share of all segments.
    """
    pieces = _pieces(compositions, suite)
    by_length = pieces.groupby("num_layers", as_index=False)
    found = by_length.agg(num_pieces=("brick", "size"), num_bricks=("brick", "nunique"))
    return found.assign(pieces_frac=_share(found["num_pieces"], len(pieces)))


def _pieces(compositions: Sequence[Composition], suite: Suite) -> pd.DataFrame:
    """Return one row for each segment: case, brick, and its number and types of layers."""
    rows = [
        {"case": each.case, "brick": piece.brick, "num_layers": suite.entry(piece.brick)["num_layers"],
         "layer_types": suite.entry(piece.brick)["layer_types"]}
        for each in compositions for piece in each.pieces
    ]  # fmt: skip
    found = pd.DataFrame(rows, columns=["case", "brick", "num_layers", "layer_types"])
    return found.astype({"case": "str", "brick": "str", "num_layers": "int64", "layer_types": "object"})


def _share(part: "pd.Series[int]", whole: "pd.Series[int] | int") -> "pd.Series[float]":
    """Return part / whole; null if the whole is zero."""
    of = pd.Series(whole, index=part.index, dtype="float64")
    return part / of.where(of > 0)
