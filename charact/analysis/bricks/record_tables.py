"""Tables of a record of constructed models: latencies and errors, time by layers, time saved, machines."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from charact.analysis.bricks.run_tables import kind_of_work, layer_text
from charact.analysis.common.cache import memoize
from charact.analysis.common.machine_names import machine_name
from charact.analysis.common.row_order import in_order
from charact.analysis.profile.case_summary import phase_times
from charact.record.reader import Run

COORDINATES = ["workload", "variant", "input_size", "batch_size", "mode", "precision", "device"]
_FACTS = ["g", "cut_method", "timing_method"]
_CONSTRUCTED_AS = {"forward": "forward", "loss": "forward", "backward": "backward", "update": "update"}
"""Phases of constructions by phase of measured iterations; the loss is captured with the model."""
NOT_RUN = "not measured: --verify measures it"
"""Reason of a model that was only constructed."""
_GROUP = [*_FACTS, "mode", "strategy", "phase"]


@memoize
def normalized_latency(run: Run) -> pd.DataFrame:
    """Return constructed over measured latency of each model, by strategy and phase, in the record's order.

    Columns: case; workload, variant, input_size, batch_size, mode, precision and device; g, maximum number of layers of
    a segment; cut_method; timing_method of the bricks; strategy; phase; latency_s with its 95 % interval low_s to
    high_s; measured_s, the median of measured iterations (null without them); normalized = latency_s / measured_s;
    error_frac = normalized - 1; reason, why there is no latency; measured_reason, why there is no measurement.

    *Error*: bricks and models were timed one after the other, and other load may affect either.
    """
    entries = [entry for entry in run.manifest["cases"] if "construct" in entry.get("passes", {})]
    facts = pd.DataFrame(
        [[entry["case"], *(entry.get(name) for name in COORDINATES),
          *(entry["passes"]["construct"].get(name) for name in _FACTS)] for entry in entries],
        columns=["case", *COORDINATES, *_FACTS])  # fmt: skip
    rows = facts.astype({"case": "str"}).merge(run.constructions, on="case")
    rows = rows.merge(_measured(run), on=["case", "phase"], how="left")
    rows["normalized"] = rows["latency_s"] / rows["measured_s"].where(rows["measured_s"] > 0)
    rows["error_frac"] = rows["normalized"] - 1
    ran = {entry["case"]: entry["passes"].get("timing", {}) for entry in entries}
    reasons = [ran[case].get("reason") or NOT_RUN for case in rows["case"]]
    rows["measured_reason"] = pd.Series(reasons, rows.index, dtype="object").where(rows["measured_s"].isna(), None)
    return rows[["case", *COORDINATES, *_FACTS, "strategy", "phase", "latency_s", "low_s", "high_s", "measured_s",
                 "normalized", "error_frac", "reason", "measured_reason"]]  # fmt: skip


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

    Args:
        normalized: result of `normalized_latency` for one record, or concatenated for several.
    """
    known = normalized.dropna(subset=["normalized"])
    rows = []
    for key, models in known.groupby(_GROUP, sort=False, dropna=False):
        worst = models.iloc[models["error_frac"].abs().argmax()]
        mean = math.exp(models["normalized"].map(math.log).mean())
        rows.append([*key, len(models), mean, models["error_frac"].abs().mean(), worst["error_frac"], worst["case"]])
    return pd.DataFrame(rows, columns=[*_GROUP, "num_models", "geometric_mean", "mean_abs_error_frac",
                                       "worst_error_frac", "worst_case"])  # fmt: skip


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

    Columns: case; workload; status; strategy, the first that has a latency of corrected, plain sum (`sequential`, or
    `paper` if that method timed the bricks) and critical path; g, latency_s, low_s, high_s, measured_s, normalized and
    error_frac as in `normalized_latency`, for whole iterations; plain_s, the plain sum; reason, why latency_s is null.
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


_CONFIGURATION = ["workload", "variant", "input_size", "batch_size", "mode", "precision"]
_FOUND = ["g", "strategy", "latency_s", "low_s", "high_s", "measured_s", "reason"]


def latency_by_machine(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the latency of each model on each machine, one row for each pair, in the order of the records.

    Columns: workload, variant, input_size, batch_size, mode and precision; machine, with its threads or the suite's
    run if several records are of one machine; g, maximum number of layers of a segment; strategy, the best of the
    model (see `model_summary`), or the plain sum if not all machines have a corrected one; latency_s with its 95 %
    interval low_s to high_s; measured_s, null if not measured there; reason, why there is no latency.
    """
    best = _of_each(runs, model_summary)
    plain = _of_each(runs, _plain_summary).set_index(["run", "case"])
    corrected = best["strategy"].eq("corrected")
    known = best["latency_s"].notna()
    everywhere = (corrected | ~known).groupby([best[name] for name in _CONFIGURATION], dropna=False).transform("all")
    rows = best.set_index(["run", "case"])
    places = rows.index[(corrected & ~everywhere).to_numpy()]
    rows.loc[places, _FOUND] = plain.loc[places, _FOUND]
    rows = rows.reset_index()
    order = rows.groupby(_CONFIGURATION, sort=False, dropna=False).ngroup()
    rows = rows.loc[order.sort_values(kind="stable").index].reset_index(drop=True)
    return rows[[*_CONFIGURATION, "machine", *_FOUND]]


def _of_each(runs: Sequence[Run], table: Callable[[Run], pd.DataFrame]) -> pd.DataFrame:
    """Return a table of latencies of all records, with configuration, machine and index of the record."""
    frames = []
    for number, (run, name) in enumerate(zip(runs, _names(runs), strict=True)):
        configurations = run.cases.reindex(columns=["case", *_CONFIGURATION]).astype({"case": "str"})
        found = configurations.merge(table(run)[["case", *_FOUND]], on="case")
        frames.append(found.assign(machine=name, run=number))
    return pd.concat(frames, ignore_index=True)


def _plain_summary(run: Run) -> pd.DataFrame:
    rows = normalized_latency(run)
    return rows[rows["phase"].eq("all") & rows["strategy"].isin(PLAIN)]


def _names(runs: Sequence[Run]) -> list[str]:
    """Return the names of the machines; equal names get the number of threads or the suite's run appended."""
    names = [machine_name(run) or run.run_id for run in runs]
    for option, words in (("threads", "threads "), ("brick_run", "")):
        labels = [f"{name}, {words}{run.manifest['options'].get(option)}" if names.count(name) > 1 else name
                for name, run in zip(names, runs, strict=True)]  # fmt: skip
        if len(set(labels)) > len(set(names)):
            names = labels
    return names
