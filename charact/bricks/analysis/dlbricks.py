"""Tables behind the figures of the DLBricks publication."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from charact.bricks.analysis.machines import latency_by_machine, machine_names
from charact.bricks.analysis.tables import (
    NOT_RUN,
    latency_errors,
    model_reuse,
    normalized_latency,
    record_pieces,
    time_saved,
    type_reuse,
)
from charact.record.reader import Run

_STRATEGIES = {"sequential": "sum", "critical_path": "path"}


def path_latencies(run: Run) -> pd.DataFrame:
    """Return each model's layers in sequence and along the critical path, over its measured latency.

    Columns: case; measured_s, the median over iterations of forward, loss, backward and update together; sum_s, the
    times of all segments added up; path_s, the longest path through the model's graph, as if parallel branches ran at
    the same time; sum_ratio and path_ratio, these over measured_s; reason, why a ratio is missing.
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


def constructions_by_g(runs: Sequence[Run]) -> pd.DataFrame:
    """Return one row for each machine and G, from the first of its records that has constructed models.

    Machines are in the order of their first record in `runs`, and rows of a machine in that of G.

    Columns: run, index of the record in `runs`; machine; g; num_models; unique_frac, distinct bricks / segments;
    geometric_mean of the plain sum over the measured latency; mean_abs_error_frac, the mean of |this ratio - 1|;
    speedup, as in `time_saved`. Null: no model was measured, or no brick was timed.
    """
    columns = ["run", "machine", "g", "num_models", "unique_frac", "geometric_mean", "mean_abs_error_frac", "speedup"]
    rows = []
    names = machine_names(runs)
    for number, (run, machine) in enumerate(zip(runs, names, strict=True)):
        latencies = normalized_latency(run).query("phase == 'all'")
        if latencies.empty:
            continue
        errors = latency_errors(latencies).query("strategy == 'sequential'")
        reuse, saved = model_reuse(record_pieces(run)), time_saved(run)
        rows.append([number, machine, int(latencies["g"].max()), latencies["case"].nunique(), *(
            table[column].iloc[place] if len(table) else None for table, column, place in (
                (reuse, "unique_frac", -1), (errors, "geometric_mean", 0), (errors, "mean_abs_error_frac", 0),
                (saved, "speedup", 0)))])
    found = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[4:], "float64"))
    order = found["machine"].map(list(dict.fromkeys(names)).index)
    found = found.assign(order=order).sort_values(["order", "g"], kind="stable").drop(columns="order")
    return found.drop_duplicates(["machine", "g"], ignore_index=True)


def speedup_slope(by_g: pd.DataFrame) -> float | None:
    """Return the slope of a least-squares line of the first machine's speedup against G, per layer; None for one G.

    Args:
        by_g: rows of `constructions_by_g`.
    """
    rows = by_g[by_g["machine"] == by_g["machine"].iloc[0]].dropna(subset=["speedup"]) if len(by_g) else by_g
    return float(np.polyfit(rows["g"].astype(float), rows["speedup"], 1)[0]) if len(rows) > 1 else None


def latencies_by_machine(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the latency of each model on each machine, from the record with the smallest G of each machine.

    Columns: workload, variant, input_size, batch_size, mode, precision and machine as in `latency_by_machine`;
    latency_s, the measured latency, or the constructed one of a model that did not run there; source, measured or
    constructed; reason, why there is no latency and no source.
    """
    first = constructions_by_g(runs).drop_duplicates("machine")
    columns = ["workload", "variant", "input_size", "batch_size", "mode", "precision", "machine", "latency_s",
               "source", "reason"]
    if first.empty:
        return pd.DataFrame(columns=columns)
    rows = latency_by_machine([runs[number] for number in first["run"]], list(first["machine"]))
    is_measured = rows["measured_s"].notna()
    latency_s = rows["measured_s"].fillna(rows["latency_s"])
    source = is_measured.map({True: "measured", False: "constructed"}).astype("object").where(latency_s.notna(), None)
    rows = rows.assign(source=source, latency_s=latency_s,
                       reason=rows["reason"].astype("object").where(~is_measured, None))
    return rows[columns]


def normalized_by_g(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the plain sum over the measured latency of each model on each machine by G.

    Columns: machine; g; case, null in the row of the geometric mean over the models, the last of each machine and G;
    normalized; reason, why it is missing.
    """
    frames = [pd.DataFrame(columns=["machine", "g", "case", "normalized", "reason"])]
    for row in constructions_by_g(runs).to_dict("records"):
        found = normalized_latency(runs[row["run"]]).query("phase == 'all' and strategy == 'sequential'")
        found = found.assign(reason=found["reason"].fillna(found["measured_reason"]))
        mean = pd.DataFrame([{"case": None, "normalized": row["geometric_mean"],
                              "reason": None if pd.notna(row["geometric_mean"]) else "no model was measured"}])
        both = pd.concat([found[["case", "normalized", "reason"]].astype("object"), mean.astype("object")])
        frames.append(both.assign(machine=row["machine"], g=row["g"])[frames[0].columns])
    rows = pd.concat(frames, ignore_index=True).astype({"normalized": "float64"})
    return rows.assign(reason=rows["reason"].astype("object").where(rows["normalized"].isna(), None))
