"""Comparison of constructed with measured latencies of the models in a construct record."""

import math

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.profile.case_summary import phase_times
from charact.record.reader import Run

COORDINATES = ["workload", "variant", "input_size", "batch_size", "mode", "precision", "device"]
_FACTS = ["g", "cut_method", "timing_method"]
_CONSTRUCTED_AS = {"forward": "forward", "loss": "forward", "backward": "backward", "update": "update"}
"""Phases of constructions by phase of measured iterations; the loss is captured with the model."""
NOT_RUN = "not measured: --verify does"
"""Reason of a model that was only constructed."""
_GROUP = [*_FACTS, "mode", "strategy", "phase"]


@memoize
def normalized_latency(run: Run) -> pd.DataFrame:
    """Return constructed over measured latency of each model, by strategy and phase, in the record's order.

    Columns: case; workload, variant, input_size, batch_size, mode, precision and device; g, maximum number of layers of
    a segment; cut_method; timing_method of the bricks; strategy; phase; latency_s with its 95 % interval low_s to
    high_s; measured_s, the median of measured iterations (null without them); normalized = latency_s / measured_s;
    error_frac = normalized - 1; reason, why there is no latency; measured_reason, why there is no measurement.

    *Error*: constructed and measured times were taken at different times, and other load may affect either.
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
