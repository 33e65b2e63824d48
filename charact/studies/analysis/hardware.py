"""Values of Aalto's claims: work of the models, batches that fit, and sums of basic operations."""

from collections.abc import Mapping, Sequence

import pandas as pd

from charact.analysis.memory.limits import memory_fits
from charact.analysis.operations.timings import operation_times
from charact.analysis.profile.case_summary import case_summary
from charact.record.reader import Run
from charact.studies.claims import Value

SETS = {"dmm": "DMM, dense products", "smm": "SMM, sparse products", "convolve2d": "Convolve2D, its layers",
        "rnn": "RNN, recurrent layers"}
"""Sets of basic operations, in the order of the study, with their names."""
_NUM_PROBLEMS: Mapping[str, int] = {"dmm": 5, "smm": 4}
"""Number of products of each published sum."""
_MODELS = ("model_a", "model_b")
_PUBLISHED_BATCH_SIZE = 64
_SMALLEST_BYTES = 6 * 2**30
"""Memory of the smallest GPU of the study, the RTX 2060 of setup 1."""


def flop_of_models(runs: Sequence[Run]) -> Value:
    """Return the counted FLOP of a training iteration of Model B / that of Model A, at equal batch sizes."""
    flop = {row["workload"]: row["flop"] for run in runs for row in case_summary(run).to_dict("records")
            if row["kind"] == "profile" and row["mode"] == "train" and row["workload"] in _MODELS
            and pd.notna(row["flop"])}
    return Value(flop["model_b"] / flop["model_a"]) if len(flop) == len(_MODELS) else Value()


def largest_batch(runs: Sequence[Run]) -> Value:
    """Return the largest batch that fits in 6 GiB by the estimate / the published batch of 64, smallest of the models.

    There is no value unless the largest batch of both models was searched.
    """
    found = {}
    for run in runs:
        fits = memory_fits(run).query("searched == 'batch_size' and limit_bytes == @_SMALLEST_BYTES")
        found.update({row["workload"]: row["value"] for row in fits.to_dict("records") if row["workload"] in _MODELS})
    largest = pd.Series(found, dtype="float64").fillna(0.0)
    return Value(float(largest.min()) / _PUBLISHED_BATCH_SIZE) if len(largest) == len(_MODELS) else Value()


def operation_sums(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the time of each set of basic operations: the sum of the medians of one call, forward.

    Columns: set, one of `SETS`; here_s; num_problems in the sum. Dense twins of sparse products do not count.
    """
    times = pd.concat([operation_times(run) for run in runs], ignore_index=True) if runs else pd.DataFrame(
        columns=["direction", "layout", "set", "problem", "median_s"])
    timed = times[(times["direction"] == "forward") & (times["layout"] != "dense") & times["set"].isin(list(SETS))]
    timed = timed.dropna(subset=["median_s"])
    return timed.groupby("set").agg(here_s=("median_s", "sum"), num_problems=("problem", "nunique")).reset_index()


def sparse_over_dense(sums: pd.DataFrame) -> Value:
    """Return the time of the sparse products / that of the dense ones, from rows of `operation_sums`."""
    by_set = {row["set"]: row for row in sums.to_dict("records")}
    if not set(_NUM_PROBLEMS) <= set(by_set):
        return Value()
    if reason := _partial(sums, *_NUM_PROBLEMS):
        return Value(reason=reason)
    return Value(by_set["smm"]["here_s"] / by_set["dmm"]["here_s"])


def convolution_over_sparse(sums: pd.DataFrame, trained: pd.DataFrame) -> Value:
    """Return the modelled training time of Convolve2D / the time of the sparse products.

    Args:
        sums: rows of `operation_sums`.
        trained: rows of `trainings`.
    """
    sparse_s = sums.loc[sums["set"] == "smm", "here_s"]
    training_s = trained.loc[trained["workload"] == "convolve2d", "modelled_s"].dropna()
    if sparse_s.empty or training_s.empty:
        return Value()
    if reason := _partial(sums, "smm"):
        return Value(reason=reason)
    return Value(float(training_s.iloc[0] / sparse_s.iloc[0]))


def _partial(sums: pd.DataFrame, *names: str) -> str:
    """Return which sums lack products; empty if none does."""
    num_run = dict(zip(sums["set"], sums["num_problems"], strict=True))
    return "; ".join(f"{num_run[name]:.0f} of {_NUM_PROBLEMS[name]} products of {name.upper()} were run"
                     for name in names if num_run[name] < _NUM_PROBLEMS[name])
