"""Tables of bricks: of a suite's run, of reuse within and between models, and of a record of constructed models.

Reuse is of the segments of models: optimizer steps and gradient sums have no layers, and decoys are in no model.
`suite_pieces` and `record_pieces` return the segments that the tables of reuse take.
"""

import json
import math
from collections.abc import Sequence
from operator import attrgetter

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.row_order import in_order
from charact.analysis.common.significance import timed
from charact.analysis.profile.case_summary import phase_times
from charact.bricks.suite.composition import Composition
from charact.bricks.suite.suite import Suite
from charact.core.operator_types import operator_type
from charact.record.reader import Run
from charact.record.schema import LEFT_OUT

_HEAVY = ("convolution", "GEMM", "attention", "recurrent", "embedding", "normalization", "pooling", "softmax")
"""Operator types that classify a sequence of layers, in order of precedence."""
_KINDS = {"update": "optimizer", "gradient_sum": "autograd"}
"""Operator types of bricks that are not layers of a model."""
_TIMES = ["time_s", "low_s", "high_s"]


def is_brick_run(run: Run) -> bool:
    """Return whether a run is a run of a suite."""
    return bool(run.entries_with("bricks"))


def layer_text(layer_types: str | None) -> str | None:
    """Return a sequence of layers as text, from their types as JSON: conv2d + relu."""
    return None if layer_types is None or pd.isna(layer_types) else " + ".join(map(str, json.loads(layer_types)))


def kind_of_work(layer_types: str | None, kind: str = "sequence") -> str | None:
    """Return the operator type of a sequence of layers: the first of `_HEAVY` that occurs, else its first layer's."""
    if kind in _KINDS:
        return _KINDS[kind]
    if layer_types is None or pd.isna(layer_types):
        return None
    types = [operator_type(str(layer)) for layer in json.loads(layer_types)]
    return next((heavy for heavy in _HEAVY if heavy in types), types[0] if types else "other")


@memoize
def round_times(run: Run) -> pd.DataFrame:
    """Return the time of one call of each brick in each round: the sum of phases, averaged over a visit's calls.

    Columns: case; brick; round; time_s, the device's time if recorded, else the host's.
    """
    rows = run.table("brick_times")
    rows = rows.assign(time_s=rows["device_s"].fillna(rows["host_s"]))
    keys = ["case", "brick", "round"]
    calls = rows.groupby([*keys, "call"], sort=False, as_index=False)[["time_s"]].sum(min_count=1)
    return calls.groupby(keys, sort=False, as_index=False)[["time_s"]].mean()


@memoize
def suite_times(run: Run) -> pd.DataFrame:
    """Return the summed time of all bricks for each complete round. Columns: case; round; suite_s."""
    times = round_times(run)
    num_bricks = times.groupby("case")["brick"].nunique()
    rounds = times.dropna(subset=["time_s"]).groupby(["case", "round"], as_index=False, sort=False).agg(
        suite_s=("time_s", "sum"), num_bricks=("brick", "nunique"))
    whole = rounds["num_bricks"] == rounds["case"].map(num_bricks)
    return rounds[whole].drop(columns="num_bricks").reset_index(drop=True)


@memoize
def brick_summary(run: Run) -> pd.DataFrame:
    """Return time and work of every brick of a suite's run, the longest first, failed ones last.

    Columns: case; brick; kind; layers, as text; operator_type, of the heaviest layer; num_layers; input_shapes as
    text; time_s, the median over the rounds of one call in all its phases, with its 95 % interval low_s to high_s
    (null below 6 rounds); num_rounds; share_frac of the time of all bricks of the case; flop and flop_per_s;
    bytes, modelled, and weights_bytes as in the table `bricks`; status and reason; time_reason, why there is no time.
    """
    found = []
    for (case, brick), times in round_times(run).groupby(["case", "brick"], sort=False)["time_s"]:
        found.append([case, brick, times.median(), *(timed(times.tolist()).interval or (None, None))])
    statistics = pd.DataFrame(found, columns=["case", "brick", *_TIMES]).astype(
        {"case": "str", "brick": "str"} | dict.fromkeys(_TIMES, "float64"))
    rows = run.table("bricks").merge(statistics, on=["case", "brick"], how="left")
    rows["layers"] = [layer_text(types) for types in rows["layer_types"]]
    rows["operator_type"] = [kind_of_work(*each) for each in zip(rows["layer_types"], rows["kind"], strict=True)]
    rows["input_shapes"] = [None if pd.isna(shapes) else ", ".join("×".join(map(str, shape)) or "scalar"
                                                                    for shape in json.loads(shapes))
                            for shapes in rows["input_shapes"]]
    total_s = rows.groupby("case")["time_s"].transform("sum")
    rows["share_frac"] = rows["time_s"] / total_s.where(total_s > 0)
    rows["flop_per_s"] = rows["flop"] / rows["time_s"].where(rows["time_s"] > 0)
    untimed = {"ok": "the record has no times", "running": "not timed yet"}
    reasons = rows["status"].map(untimed).fillna(rows["reason"]).fillna(rows["status"]).astype("object")
    rows["time_reason"] = reasons.where(rows["time_s"].isna(), None)
    rows = rows.sort_values("time_s", ascending=False, kind="stable", ignore_index=True)
    return rows[[
        "case", "brick", "kind", "layers", "operator_type", "num_layers", "input_shapes", *_TIMES, "num_rounds",
        "share_frac", "flop", "flop_per_s", "bytes", "weights_bytes",
        "status", "reason", "time_reason",
    ]]  # fmt: skip


def has_failed(bricks: pd.DataFrame) -> "pd.Series[bool]":
    """Return for each brick whether it has no time although it was selected; includes bricks not timed yet."""
    return bricks["time_s"].isna() & bricks["status"].ne(LEFT_OUT)


@memoize
def suite_summary(run: Run) -> pd.DataFrame:
    """Return a summary of each case of a suite's run, failed ones included.

    Columns: case; variant, the suite's name; mode; precision; device; g, maximum number of layers of a brick; method of
    timing; num_bricks, num_failed, and num_left_out, the bricks whose times are predicted; num_layers of all bricks;
    num_rounds; ended_by; suite_s, the sum of all timed bricks; flop; timed_s, the time of timed calls, and
    set_up_s, the other time of visits, such as for inputs and weights; status and reason.
    """
    bricks = brick_summary(run)
    grouped = bricks.groupby("case")
    sums = pd.DataFrame({
        "num_bricks": grouped.size(), "num_failed": has_failed(bricks).groupby(bricks["case"]).sum(),
        "num_left_out": bricks["status"].eq(LEFT_OUT).groupby(bricks["case"]).sum(),
        "num_layers": grouped["num_layers"].sum(), "suite_s": grouped["time_s"].sum(min_count=1),
        "flop": grouped["flop"].sum(min_count=1),
    })  # fmt: skip
    facts = pd.DataFrame([[*(getattr(entry, name) for name in _OF_CASE),
                           *(getattr(entry.passes.bricks, name) for name in _OF_PASS)]
                          for entry in run.entries_with("bricks")], columns=[*_OF_CASE, *_OF_PASS])
    return facts.merge(sums.reset_index(), on="case", how="left").fillna(
        {"num_bricks": 0, "num_failed": 0, "num_left_out": 0})  # fmt: skip


_OF_CASE = ["case", "variant", "mode", "precision", "device", "status", "reason"]
_OF_PASS = ["g", "method", "num_rounds", "ended_by", "timed_s", "set_up_s"]


@memoize
def brick_types(run: Run) -> pd.DataFrame:
    """Return the bricks grouped by their sequence of layer types, the longest total time first.

    Columns: case; layers; operator_type; num_bricks; time_s, their sum; share_frac of the case's; flop_per_s.
    """
    timed = brick_summary(run).dropna(subset=["time_s"])
    keys = ["case", "layers", "operator_type"]
    rows = timed.groupby(keys, sort=False, dropna=False, as_index=False).agg(
        num_bricks=("brick", "size"), time_s=("time_s", "sum"), share_frac=("share_frac", "sum"),
        flop=("flop", lambda flop: flop.sum(min_count=1)),
    )  # fmt: skip
    rows["flop_per_s"] = rows.pop("flop") / rows["time_s"].where(rows["time_s"] > 0)
    return rows.sort_values("time_s", ascending=False, kind="stable", ignore_index=True)


_PIECE_COLUMNS = ["case", "brick", "num_layers", "layers"]


def suite_pieces(compositions: Sequence[Composition], suite: Suite) -> pd.DataFrame:
    """Return one row for each segment of models. Columns: case; brick; num_layers; layers, as text."""
    rows = [(each.case, piece.brick, suite.entry(piece.brick)["num_layers"],
             " + ".join(suite.entry(piece.brick)["layer_types"])) for each in compositions for piece in each.pieces]
    return pd.DataFrame(rows, columns=_PIECE_COLUMNS)


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
    rows = _reuse(pieces, "case").drop(columns="num_models")
    if len(rows) > 1:
        rows = pd.concat([rows, _reuse(pieces.assign(all="all"), "all").drop(columns=["all", "num_models"])])
    rows = rows.assign(shared_frac=rows["num_shared"] / rows["num_bricks"]).reset_index(drop=True)
    return rows[["case", "num_layers", "num_pieces", "num_bricks", "unique_frac", "num_shared", "shared_frac"]]


def layer_reuse(pieces: pd.DataFrame) -> pd.DataFrame:
    """Return how often sequences of layer types occur in models, the most frequent first.

    Columns: layers; num_pieces; num_bricks, distinct ones; unique_frac; num_models that contain one; num_shared, bricks
    that occur in several models.
    """
    rows = _reuse(pieces, "layers").drop(columns="num_layers")
    return rows.sort_values("num_pieces", ascending=False, kind="stable", ignore_index=True)


def type_reuse(pieces: pd.DataFrame) -> pd.DataFrame:
    """Return how often the segments of each operator type occur in models, the most frequent first.

    Columns: operator_type, of the heaviest layer; num_layers; num_pieces; num_bricks, distinct ones; unique_frac;
    num_models that contain one; num_shared, bricks that occur in several models.
    """
    return _reuse(pieces, "operator_type").sort_values("num_pieces", ascending=False, kind="stable", ignore_index=True)


def _reuse(pieces: pd.DataFrame, key: str) -> pd.DataFrame:
    """Count segments, distinct and shared bricks by the values of a column, in the given order."""
    is_shared = pieces.groupby("brick")["case"].transform("nunique") > 1
    groups = pieces.assign(shared=pieces["brick"].where(is_shared)).groupby(key, sort=False, as_index=False)
    rows = groups.agg(num_layers=("num_layers", "sum"), num_pieces=("brick", "size"), num_bricks=("brick", "nunique"),
                      num_models=("case", "nunique"), num_shared=("shared", "nunique"))
    rows.insert(4, "unique_frac", rows["num_bricks"] / rows["num_pieces"])
    return rows


def brick_reuse(pieces: pd.DataFrame) -> pd.DataFrame:
    """Return the number of uses of each brick, the most frequent first.

    Columns: brick; layers; num_uses; num_models; most_in_one, the maximum number of uses in one model.
    """
    in_models = pieces.groupby(["brick", "layers", "case"]).size().groupby(["brick", "layers"])
    rows = in_models.agg(num_uses="sum", num_models="size", most_in_one="max").reset_index()
    return rows.sort_values(["num_uses", "brick"], ascending=[False, True], ignore_index=True)


COORDINATES = ["workload", "variant", "input_size", "batch_size", "mode", "precision", "device"]
_CONSTRUCT_FACTS = ["g", "cut_method", "timing_method"]
_CONSTRUCTED_AS = {"forward": "forward", "loss": "forward", "backward": "backward", "update": "update"}
"""Phases of constructions by phase of measured iterations; the loss is captured with the model."""
NOT_RUN = "not measured: --verify measures it"
"""Reason of a model that was only constructed."""
_ERROR_GROUP = [*_CONSTRUCT_FACTS, "mode", "strategy", "phase"]


@memoize
def normalized_latency(run: Run) -> pd.DataFrame:
    """Return constructed over measured latency of each model, by strategy and phase, in the record's order.

    Columns: case; workload, variant, input_size, batch_size, mode, precision and device; g, maximum number of layers of
    a segment; cut_method; timing_method of the bricks; strategy; phase; latency_s with its 95 % interval low_s to
    high_s; measured_s, the median of the same phase in measured iterations,
    where `all` sums forward, loss, backward and update (null without them); normalized = latency_s / measured_s;
    error_frac = normalized - 1; reason, why there is no latency; measured_reason, why there is no measurement.

    *Error*: bricks and models were timed one after the other, and other load may affect either.
    """
    entries = run.entries_with("construct")
    facts = pd.DataFrame(
        [[entry.case, *(getattr(entry, name) for name in COORDINATES),
          *(getattr(entry.passes.construct, name) for name in _CONSTRUCT_FACTS)] for entry in entries],
        columns=["case", *COORDINATES, *_CONSTRUCT_FACTS])
    rows = facts.astype({"case": "str"}).merge(run.constructions, on="case")
    rows = rows.merge(_measured(run), on=["case", "phase"], how="left")
    rows["normalized"] = rows["latency_s"] / rows["measured_s"].where(rows["measured_s"] > 0)
    rows["error_frac"] = rows["normalized"] - 1
    unmeasured = {entry.case: entry.passes.timing.reason or NOT_RUN for entry in entries}
    reasons = [unmeasured[case] for case in rows["case"]]
    rows["measured_reason"] = pd.Series(reasons, rows.index, dtype="object").where(rows["measured_s"].isna(), None)
    return rows[["case", *COORDINATES, *_CONSTRUCT_FACTS, "strategy", "phase", "latency_s", "low_s", "high_s",
                 "measured_s", "normalized", "error_frac", "reason", "measured_reason"]]  # fmt: skip


def _measured(run: Run) -> pd.DataFrame:
    """Return medians of measured iterations by the phases of constructions."""
    rows = phase_times(run)
    rows = rows.assign(phase=rows["phase"].map(_CONSTRUCTED_AS)).dropna(subset=["phase"])
    by_iteration = pd.concat([rows, rows.assign(phase="all")]).groupby(["case", "iteration", "phase"])["time_s"].sum()
    return by_iteration.groupby(["case", "phase"]).median().rename("measured_s").reset_index()


def latency_errors(normalized: pd.DataFrame) -> pd.DataFrame:
    """Return the errors of constructions over the measured models.

    Columns: g; cut_method; timing_method; mode; strategy; phase; num_models; geometric_mean of constructed / measured;
    mean_abs_error_frac; worst_error_frac, signed; worst_case, its case.
    """
    known = normalized.dropna(subset=["normalized"])
    rows = []
    for key, models in known.groupby(_ERROR_GROUP, sort=False, dropna=False):
        worst = models.iloc[models["error_frac"].abs().argmax()]
        mean = math.exp(models["normalized"].map(math.log).mean())
        rows.append([*key, len(models), mean, models["error_frac"].abs().mean(), worst["error_frac"], worst["case"]])
    return pd.DataFrame(rows, columns=[*_ERROR_GROUP, "num_models", "geometric_mean", "mean_abs_error_frac",
                                       "worst_error_frac", "worst_case"])  # fmt: skip


STARTS = "start of backward and of step"
_LEAST_START_S = 1e-9
"""Smaller remainders of a sum are rounding errors."""

_BEST_FIRST = ("corrected", "sequential", "critical_path")
"""Preference of strategies: the first with a latency represents the model."""
BAND_FRAC = 0.1
"""Constructions within this relative error count as good."""


@memoize
def model_summary(run: Run) -> pd.DataFrame:
    """Return one row for each model of a record, also for those that could not be constructed, in the record's order.

    Columns: case; workload; status; strategy, the first that has a latency of corrected, plain sum (`sequential`) and
    critical path; g, latency_s, low_s, high_s, measured_s, normalized and
    error_frac as in `normalized_latency`, for whole iterations; plain_s, the plain sum; reason, why latency_s is null.
    """
    rows = normalized_latency(run).query("phase == 'all'")
    plain = rows[rows["strategy"] == "sequential"].set_index("case")["latency_s"]
    rank = rows["strategy"].map(_BEST_FIRST.index).astype("int64") + len(_BEST_FIRST) * rows["latency_s"].isna()
    best = rows.assign(rank=rank).sort_values("rank", kind="stable").drop_duplicates("case")
    cases = pd.DataFrame([[entry.case, entry.workload, entry.status, entry.reason or "the record has no construction"]
                          for entry in run.entries_with("construct")],
                         columns=["case", "workload", "status", "why"], dtype="str")
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
    rows = rows[rows["strategy"].eq("sequential") & rows["phase"].eq("all")]
    return rows.set_index("case")["latency_s"].astype("float64")


@memoize
def time_by_layers(run: Run) -> pd.DataFrame:
    """Return each constructed model's plain sum by layer types, the longest first.

    Columns: case; layers, a sequence of layer types as text, or `STARTS` for overheads that occur once; operator_type,
    of the heaviest layer; num_uses; time_s; share_frac of the sum. Models with untimed bricks are left out.
    """
    pieces = _whole_pieces(run)
    named = pieces.assign(
        layers=[layer_text(types) or "not recorded" for types in pieces["layer_types"]],
        operator_type=["optimizer" if phase == "update" else kind_of_work(types) or "other"
                       for phase, types in zip(pieces["phase"], pieces["layer_types"], strict=True)])
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
    """Return the share of predicted bricks in the times of all segments, in one row; an empty table if all were timed.

    Columns: num_bricks, distinct ones; num_predicted of these; share_frac of these times, which
    include models without a latency, but no starts of backward passes.
    """
    pieces = run.pieces
    predicted = pieces["method"] == "predicted"
    columns = ["num_bricks", "num_predicted", "share_frac"]
    if not predicted.any():
        return pd.DataFrame(columns=columns)
    share = pieces.loc[predicted, "time_s"].sum() / pieces["time_s"].sum()
    return pd.DataFrame([[pieces["brick"].nunique(), pieces.loc[predicted, "brick"].nunique(), share]], columns=columns)


@memoize
def time_saved(run: Run) -> pd.DataFrame:
    """Return the time saved by timing bricks instead of models at equal repeats; one row, or none without timed bricks.

    Columns: num_models with times of all their bricks; models_s, one repeat of each, constructed; suite_s, one repeat
    of each of their distinct timed bricks; speedup = models_s / suite_s; set_up_s, the untimed part of the visits to
    all bricks of the suite; speedup_with_set_up, the same ratio over all repeats and with set_up_s added to the
    bricks; reason, why that is null.

    *Error*: the time to prepare bricks before the first round, to count their work, and to start models is left out.
    """
    pieces = _whole_pieces(run)
    columns = ["num_models", "models_s", "suite_s", "speedup", "set_up_s", "speedup_with_set_up", "reason"]
    if pieces["method"].eq("predicted").all():
        return pd.DataFrame(columns=columns)
    facts = {entry.case: entry.passes.construct for entry in run.entries}
    # Bricks of training and inference are timed in separate cases, with their own rounds and set-up.
    pieces = pieces.assign(timed_by=[facts[case].brick_case or "" for case in pieces["case"]],
                           each_s=pieces["time_s"] / pieces["num_uses_here"])
    bricks = pieces[pieces["method"] != "predicted"].drop_duplicates(["timed_by", "brick", "phase"])
    starts_s = bricks["case"].map(lambda case: facts[case].backward_start_s or 0.0)
    bricks["each_s"] += starts_s.where(bricks["phase"].eq("backward") & bricks["piece"].notna(), 0.0)
    models = pieces.drop_duplicates("case")
    timed = pd.DataFrame({"models_s": models["case"].map(_plain_sums(run)).groupby(models["timed_by"]).sum(),
                          "suite_s": bricks.groupby("timed_by")["each_s"].sum()})
    timers = pieces.drop_duplicates("timed_by").set_index("timed_by")["case"].map(facts)
    for name in ("num_repeats", "set_up_s"):
        timed[name] = timers.map(attrgetter(name)).astype("float64")
    models_s, suite_s, set_up_s = (float(timed[name].sum(skipna=False)) for name in ("models_s", "suite_s", "set_up_s"))
    repeated = timed[["models_s", "suite_s"]].mul(timed["num_repeats"], axis="index").sum(skipna=False)
    with_set_up = repeated["models_s"] / (repeated["suite_s"] + set_up_s)
    reason = "the record has no set-up time" if pd.isna(with_set_up) else None
    return pd.DataFrame([[pieces["case"].nunique(), models_s, suite_s, models_s / suite_s, set_up_s, with_set_up,
                          reason]], columns=columns)  # fmt: skip
