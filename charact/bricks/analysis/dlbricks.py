"""Tables behind the figures of the DLBricks publication."""

import pandas as pd

from charact.bricks.analysis.tables import NOT_RUN, model_reuse, normalized_latency, record_pieces, type_reuse
from charact.record.reader import Run

_STRATEGIES = {"sequential": "sum", "critical_path": "path"}


def path_latencies(run: Run) -> pd.DataFrame:
    """Return each model's layers in sequence and along the critical path, over its measured latency.

    Columns: case; measured_s, the median iteration of the model; sum_s, the times of all segments added up; path_s,
    the longest path through the model's graph, as if parallel branches ran at the same time; sum_ratio and path_ratio,
    these over measured_s; reason, why a ratio is missing.
    """
    rows = normalized_latency(run).query("phase == 'all' and strategy in @_STRATEGIES")
    wide = rows.pivot(index="case", columns="strategy", values=["latency_s", "normalized"])
    found = rows.drop_duplicates("case")[["case", "measured_s"]]
    for column, end in (("latency_s", "s"), ("normalized", "ratio")):
        for strategy, name in _STRATEGIES.items():
            values = wide[column][strategy] if (column, strategy) in wide else pd.Series(dtype="float64")
            found[f"{name}_{end}"] = found["case"].map(values).astype("float64")
    reasons = rows.assign(why=rows["reason"].fillna(rows["measured_reason"])).groupby("case")["why"].first()
    known = found[["sum_ratio", "path_ratio"]].notna().all(axis="columns")
    found["reason"] = found["case"].map(reasons).fillna(NOT_RUN).astype("object").where(~known, None)
    return found.reset_index(drop=True)


def repeated_layers(run: Run) -> pd.DataFrame:
    """Return the layers of a record at G = 1 by operator type and by model; no rows for a larger G.

    Columns: operator_type, null in the rows of models; case, null in the rows of types and in the row of all models
    together, which is the last of several; num_pieces, layers; num_bricks, distinct layers; unique_frac, distinct
    layers / layers.
    """
    pieces = record_pieces(run)
    if (pieces["num_layers"] > 1).any():
        pieces = pieces.head(0)
    columns = ["operator_type", "case", "num_pieces", "num_bricks", "unique_frac"]
    return pd.concat([table.reindex(columns=columns) for table in (type_reuse(pieces), model_reuse(pieces))],
                     ignore_index=True)
