"""Tables of a record of constructed models: latencies and errors, time by layers, reuse, and time saved."""

from typing import Any

import pandas as pd

from charact.analysis.bricks.run_tables import kind_of_work, layer_text
from charact.analysis.bricks.verification import normalized_latency
from charact.analysis.common.cache import memoize
from charact.analysis.common.row_order import in_order
from charact.record.reader import Run

_NOTHING = "the record has no construction"

STARTS = "start of backward and of step"
_LEAST_START_S = 1e-9
"""Smaller remainders of a sum are rounding errors."""

PLAIN = ["sequential", "paper"]
"""Strategies that sum uncorrected times; a model has one of them."""
_BEST_FIRST = ("corrected", "sequential", "paper", "critical_path")
"""Preference of strategies: the first with a latency represents the model."""
BAND_FRAC = 0.1
"""Constructions within this relative error count as good."""


@memoize
def model_summary(run: Run) -> pd.DataFrame:
    """Return one row for each model of a record, also for those that could not be constructed, in the record's order.

    Columns: case; workload; status; strategy, the first of corrected, plain sum (of the paper's method) and critical
    path that has a latency; g, latency_s, low_s, high_s, measured_s, normalized and error_frac as in
    `normalized_latency`, for whole iterations; plain_s, the plain sum (of the paper's method if that timed the bricks);
    reason, why there is no latency.
    """
    rows = normalized_latency(run).query("phase == 'all'")
    plain = rows[rows["strategy"].isin(PLAIN)].drop_duplicates("case").set_index("case")["latency_s"]
    rank = rows["strategy"].map(_BEST_FIRST.index).astype("int64") + len(_BEST_FIRST) * rows["latency_s"].isna()
    best = rows.assign(rank=rank).sort_values("rank", kind="stable").drop_duplicates("case")
    entries = [entry for entry in run.manifest["cases"] if "construct" in entry.get("passes", {})]
    facts = [[entry["case"], entry.get("workload"), entry["status"], entry.get("reason") or _NOTHING]
             for entry in entries]
    cases = pd.DataFrame(facts, columns=["case", "workload", "status", "why"], dtype="str")
    found = cases.merge(best.drop(columns="workload"), on="case", how="left")
    reason = found["reason"].astype("object").where(found["reason"].notna(), found["why"])
    found["reason"] = reason.where(found["latency_s"].isna(), None)
    found["strategy"] = found["strategy"].astype("object").where(found["latency_s"].notna(), None)
    found["plain_s"] = found["case"].map(plain).astype("float64")
    return found[["case", "workload", "status", "strategy", "g", "latency_s", "low_s", "high_s", "measured_s",
                  "normalized", "error_frac", "plain_s", "reason"]]  # fmt: skip


def _whole_pieces(run: Run) -> pd.DataFrame:
    """Return the rows of the table `pieces` of models whose bricks all have times."""
    pieces = run.pieces
    return pieces[pieces["time_s"].notna().groupby(pieces["case"]).transform("all").astype(bool)]


def _plain_sums(run: Run) -> "pd.Series[float]":
    """Return the plain sum (s) of each model's iteration, by case."""
    rows = run.constructions
    rows = rows[rows["strategy"].isin(PLAIN) & rows["phase"].eq("all")]
    return rows.set_index("case")["latency_s"].astype("float64")


def _fact(entry: dict[str, Any], name: str) -> Any:
    """Return a fact of a case's pass `construct`, or None."""
    return entry.get("passes", {}).get("construct", {}).get(name)


@memoize
def time_by_layers(run: Run) -> pd.DataFrame:
    """Return each constructed model's plain sum by layer types, the longest first.

    Columns: case; layers, a sequence of layer types as text, or `STARTS` for overheads that occur once; operator_type,
    of the heaviest layer; num_uses; time_s; share_frac of the sum. Models with untimed bricks are left out.
    """
    pieces = _whole_pieces(run)
    named = pieces.assign(
        layers=[layer_text(types) or "not recorded" for types in pieces["layer_types"]],
        operator_type=[_kind(*each) for each in zip(pieces["phase"], pieces["layer_types"], strict=True)],
    )  # fmt: skip
    rows = named.groupby(["case", "layers", "operator_type"], sort=False, as_index=False).agg(
        num_uses=("num_uses_here", "sum"), time_s=("time_s", "sum"))
    rest_s = (_plain_sums(run) - pieces.groupby("case")["time_s"].sum()).dropna()
    starts = rest_s[rest_s > _LEAST_START_S].rename("time_s").rename_axis("case").reset_index()
    rows = pd.concat([rows, starts.assign(layers=STARTS, operator_type="other", num_uses=1)], ignore_index=True)
    total_s = rows.groupby("case")["time_s"].transform("sum")
    rows["share_frac"] = rows["time_s"] / total_s.where(total_s > 0)
    return in_order(rows.sort_values("time_s", ascending=False, kind="stable"), run, "case")


@memoize
def predicted_times(run: Run) -> pd.DataFrame:
    """Return the share of predicted bricks in the plain sums, in one row; an empty table if all were timed.

    Columns: num_bricks, distinct ones; num_predicted of these; share_frac of the sums.
    """
    pieces = run.pieces
    predicted = pieces["method"] == "predicted"
    columns = ["num_bricks", "num_predicted", "share_frac"]
    if not predicted.any():
        return pd.DataFrame(columns=columns)
    share = pieces.loc[predicted, "time_s"].sum() / pieces["time_s"].sum()
    return pd.DataFrame([[pieces["brick"].nunique(), pieces.loc[predicted, "brick"].nunique(), share]], columns=columns)


def _kind(phase: str, layer_types: str | None) -> str:
    return "optimizer" if phase == "update" else kind_of_work(layer_types) or "other"


@memoize
def brick_reuse(run: Run) -> pd.DataFrame:
    """Return the share of distinct bricks among segments, by model and overall, without updates and gradient sums.

    Columns: case, null in the last row (all models together); num_layers; num_pieces; num_bricks, distinct ones;
    unique_frac = num_bricks / num_pieces.
    """
    pieces = _placed(run)
    rows: list[list[Any]] = [[case, *_counts(some)] for case, some in pieces.groupby("case", sort=False)]
    if len(rows) > 1:
        rows.append([None, *_counts(pieces)])
    return pd.DataFrame(rows, columns=["case", "num_layers", "num_pieces", "num_bricks", "unique_frac"])


def _placed(run: Run) -> pd.DataFrame:
    pieces = run.pieces
    return pieces[pieces["piece"].notna() & (pieces["phase"] == "forward")]


def _counts(pieces: pd.DataFrame) -> list[float]:
    num_bricks = pieces["brick"].nunique()
    return [pieces["num_layers"].sum(), len(pieces), num_bricks, num_bricks / len(pieces)]


@memoize
def reuse_by_layers(run: Run) -> pd.DataFrame:
    """Return how often sequences of layer types occur in the models of a record, the most frequent first.

    Columns: layers; operator_type; num_pieces; num_bricks, distinct ones; unique_frac; num_models that contain one;
    num_shared, bricks that occur in several models.
    """
    pieces = _placed(run)
    pieces = pieces.assign(layers=[layer_text(types) or "not recorded" for types in pieces["layer_types"]])
    models = pieces.groupby("brick")["case"].nunique()
    rows = []
    for layers, some in pieces.groupby("layers", sort=False):
        bricks = some["brick"].unique()
        rows.append([layers, kind_of_work(some["layer_types"].iloc[0]) or "other", len(some), len(bricks),
                     len(bricks) / len(some), some["case"].nunique(), int((models[bricks] > 1).sum())])  # fmt: skip
    found = pd.DataFrame(rows, columns=["layers", "operator_type", "num_pieces", "num_bricks", "unique_frac",
                                        "num_models", "num_shared"])  # fmt: skip
    return found.sort_values("num_pieces", ascending=False, kind="stable", ignore_index=True)


@memoize
def piece_lengths(run: Run) -> pd.DataFrame:
    """Return segments and distinct bricks by number of layers. Columns: num_layers, num_pieces, num_bricks."""
    return _placed(run).dropna(subset=["num_layers"]).groupby("num_layers", as_index=False).agg(
        num_pieces=("brick", "size"), num_bricks=("brick", "nunique"))


@memoize
def time_saved(run: Run) -> pd.DataFrame:
    """Return the time saved by timing bricks instead of models at equal repeats; one row, or none without timed bricks.

    Columns: num_models with times of all their bricks; models_s, one repeat of each, constructed; suite_s, one repeat
    of each of their distinct timed bricks; speedup = models_s / suite_s; set_up_s, the untimed part of the visits to
    all bricks of the suite; speedup_with_set_up, the same ratio over all repeats and with set_up_s added to the
    bricks; reason, why that is null.

    *Error*: preparing bricks before the first round and measuring their memory are not counted, nor is the start of
    models.
    """
    pieces = _whole_pieces(run)
    columns = ["num_models", "models_s", "suite_s", "speedup", "set_up_s", "speedup_with_set_up", "reason"]
    if pieces["method"].eq("predicted").all():
        return pd.DataFrame(columns=columns)
    facts = {entry["case"]: entry for entry in run.manifest["cases"]}
    # Bricks of training and inference are timed in separate cases, with their own rounds and set-up.
    pieces = pieces.assign(timed_by=[_fact(facts[case], "brick_case") or "" for case in pieces["case"]],
                           each_s=pieces["time_s"] / pieces["num_uses_here"])
    bricks = pieces[pieces["method"] != "predicted"].drop_duplicates(["timed_by", "brick", "phase"])
    starts_s = bricks["case"].map(lambda case: _fact(facts[case], "backward_start_s") or 0.0)
    bricks["each_s"] += starts_s.where(bricks["phase"].eq("backward") & bricks["piece"].notna(), 0.0)
    models = pieces.drop_duplicates("case")
    timed = pd.DataFrame({"models_s": models["case"].map(_plain_sums(run)).groupby(models["timed_by"]).sum(),
                          "suite_s": bricks.groupby("timed_by")["each_s"].sum()})
    entries = pieces.drop_duplicates("timed_by").set_index("timed_by")["case"].map(facts)
    for name in ("num_repeats", "set_up_s"):
        timed[name] = entries.map(lambda entry, name=name: _fact(entry, name)).astype("float64")
    models_s, suite_s, set_up_s = (float(timed[name].sum(skipna=False)) for name in ("models_s", "suite_s", "set_up_s"))
    repeated = timed[["models_s", "suite_s"]].mul(timed["num_repeats"], axis="index").sum(skipna=False)
    with_set_up = repeated["models_s"] / (repeated["suite_s"] + set_up_s)
    reason = "the record has no set-up time" if pd.isna(with_set_up) else None
    return pd.DataFrame([[pieces["case"].nunique(), models_s, suite_s, models_s / suite_s, set_up_s, with_set_up,
                          reason]], columns=columns)  # fmt: skip
