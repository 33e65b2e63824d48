"""Tables of a suite's run: time and work of each brick, and time by types of layers."""

import json
from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.core.operator_types import operator_type
from charact.core.statistics import median_interval
from charact.record.reader import Run
from charact.record.schema import LEFT_OUT

_HEAVY = ("convolution", "GEMM", "attention", "recurrent", "embedding", "normalization", "pooling", "softmax")
"""Operator types that classify a sequence of layers, in order of precedence."""
_KINDS = {"update": "optimizer", "gradient_sum": "autograd"}
"""Operator types of bricks that are not layers of a model."""
_TIMES = ["time_s", "low_s", "high_s"]


def is_brick_run(run: Run) -> bool:
    """Return whether a run is a run of a suite."""
    return any("bricks" in entry.get("passes", {}) for entry in run.manifest["cases"])


def layer_text(layer_types: str | None) -> str | None:
    """Return a sequence of layers as text, from their types as JSON: conv2d + relu."""
    return None if layer_types is None or pd.isna(layer_types) else " + ".join(map(str, json.loads(layer_types)))


def kind_of_work(layer_types: str | None, kind: str = "sequence") -> str | None:
    """Return the operator type of a sequence of layers: of its heaviest layer, else of its first."""
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
    rows = run.table("bricks").merge(_statistics(run), on=["case", "brick"], how="left")
    rows["layers"] = [layer_text(types) for types in rows["layer_types"]]
    rows["operator_type"] = [kind_of_work(*each) for each in zip(rows["layer_types"], rows["kind"], strict=True)]
    rows["input_shapes"] = [_shapes(shapes) for shapes in rows["input_shapes"]]
    total_s = rows.groupby("case")["time_s"].transform("sum")
    rows["share_frac"] = rows["time_s"] / total_s.where(total_s > 0)
    rows["flop_per_s"] = rows["flop"] / rows["time_s"].where(rows["time_s"] > 0)
    rows["time_reason"] = pd.Series([_time_reason(row) for row in rows.to_dict("records")], rows.index, dtype="object")
    rows = rows.sort_values("time_s", ascending=False, kind="stable", ignore_index=True)
    return rows[[
        "case", "brick", "kind", "layers", "operator_type", "num_layers", "input_shapes", *_TIMES, "num_rounds",
        "share_frac", "flop", "flop_per_s", "bytes", "weights_bytes",
        "status", "reason", "time_reason",
    ]]  # fmt: skip


def _statistics(run: Run) -> pd.DataFrame:
    rows = []
    for (case, brick), times in round_times(run).groupby(["case", "brick"], sort=False)["time_s"]:
        low, high = median_interval(times.tolist()) or (None, None)
        rows.append([case, brick, times.median(), low, high])
    statistics = pd.DataFrame(rows, columns=["case", "brick", *_TIMES])
    return statistics.astype(dict.fromkeys(["case", "brick"], "str") | dict.fromkeys(_TIMES, "float64"))


def _shapes(text: str | None) -> str | None:
    if text is None or pd.isna(text):
        return None
    return ", ".join("×".join(map(str, shape)) or "scalar" for shape in json.loads(text))


def _time_reason(row: dict[Any, Any]) -> str | None:
    if pd.notna(row["time_s"]):
        return None
    if row["status"] in ("ok", "running"):
        return "the record has no times" if row["status"] == "ok" else "not timed yet"
    return str(row["status"] if pd.isna(row["reason"]) else row["reason"])


def has_failed(bricks: pd.DataFrame) -> "pd.Series[bool]":
    """Return for each brick whether its timing failed."""
    return bricks["time_s"].isna() & bricks["status"].ne(LEFT_OUT)


@memoize
def suite_summary(run: Run) -> pd.DataFrame:
    """Return a summary of each case of a suite's run, failed ones included.

    Columns: case; variant, the suite's name; mode; precision; device; g, maximum number of layers of a brick; method of
    timing; num_bricks, num_failed, and num_left_out, the bricks whose times are predicted; num_layers of all bricks;
    num_rounds; ended_by; suite_s, the sum of all timed bricks; flop; timed_s and set_up_s, the time of timed calls and
    of everything else; status and reason.
    """
    bricks = brick_summary(run)
    grouped = bricks.groupby("case")
    sums = pd.DataFrame({
        "num_bricks": grouped.size(), "num_failed": has_failed(bricks).groupby(bricks["case"]).sum(),
        "num_left_out": bricks["status"].eq(LEFT_OUT).groupby(bricks["case"]).sum(),
        "num_layers": grouped["num_layers"].sum(), "suite_s": grouped["time_s"].sum(min_count=1),
        "flop": grouped["flop"].sum(min_count=1),
    })  # fmt: skip
    facts = pd.DataFrame([_facts(entry) for entry in run.manifest["cases"] if "bricks" in entry.get("passes", {})],
                         columns=_FACTS)  # fmt: skip
    return facts.merge(sums.reset_index(), on="case", how="left").fillna(
        {"num_bricks": 0, "num_failed": 0, "num_left_out": 0})  # fmt: skip


_FACTS = ["case", "variant", "mode", "precision", "device", "status", "reason", "g", "method", "num_rounds", "ended_by",
          "timed_s", "set_up_s"]  # fmt: skip


def _facts(entry: dict[str, Any]) -> list[Any]:
    facts = entry["passes"]["bricks"]
    return [*(entry.get(name) for name in _FACTS[:7]), *(facts.get(name) for name in _FACTS[7:])]


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
