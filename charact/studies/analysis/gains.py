"""What each training gains from the faster GPU by its published times, and how long it waits for the host here."""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.efficiency.time_bounds import time_limits
from charact.record.reader import Run
from charact.studies.published import NUM_SAMPLES, published_cases, trainings

_KEYS = ["workload", "data", "num_epochs"]
_BATCH_SIZE = 10
"""Batch size of the publication."""


def published_gains() -> pd.DataFrame:
    """Return the published times on both GPUs and their ratio, a row for each workload and data set.

    Columns: workload; data; num_epochs; num_samples of the training split; total_s_k80, total_s_p100, accuracy_k80 and
    accuracy_p100; gain = time on the K80 / time on the P100; iteration_s_k80 and iteration_s_p100, the time / the
    number of batches of 10; beyond_s_k80 and beyond_s_p100, how much longer that is than the iteration of the same
    network on MNIST, whose tensors have the same shapes (null for MNIST).
    """
    k80, p100 = (published_cases([f"northeastern-{gpu}"]).set_index(_KEYS)[["total_s", "accuracy"]]
                 for gpu in ("k80", "p100"))
    rows = k80.merge(p100, left_index=True, right_index=True, suffixes=("_k80", "_p100")).reset_index()
    rows = rows.assign(num_samples=rows["data"].map(NUM_SAMPLES), gain=rows["total_s_k80"] / rows["total_s_p100"])
    num_batches = rows["num_epochs"] * rows["num_samples"] / _BATCH_SIZE
    for gpu in ("k80", "p100"):
        iteration_s = rows[f"total_s_{gpu}"] / num_batches
        of_mnist = iteration_s[rows["data"] == "mnist"].set_axis(rows.loc[rows["data"] == "mnist", "workload"])
        beyond_s = iteration_s - rows["workload"].map(of_mnist)
        rows = rows.assign(**{f"iteration_s_{gpu}": iteration_s,
                              f"beyond_s_{gpu}": beyond_s.where(rows["data"] != "mnist")})
    return rows


def trainings_and_gains(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the rows of `gains_and_host_shares` with the columns of `trainings`, and two more.

    over_k80 and over_p100: published time / modelled time here, null if the training was not run.
    """
    rows = trainings(runs, gains_and_host_shares(runs))
    return rows.assign(over_k80=rows["total_s_k80"] / rows["modelled_s"],
                       over_p100=rows["total_s_p100"] / rows["modelled_s"])


def gain_correlation(rows: pd.DataFrame) -> float | None:
    """Return Spearman's rank correlation of `gain` with `host_frac` over rows of trainings.

    It is None with fewer than three different host shares.
    """
    known = rows.dropna(subset=["host_frac"])
    if known["host_frac"].nunique() < 3:
        return None
    return float(known["gain"].rank().corr(known["host_frac"].rank()))


def longer_iterations() -> pd.DataFrame:
    """Return the parts of published iterations that take longer than on MNIST on both GPUs, by the tensors' shapes.

    Columns: workload; data; machine (K80 or P100); part, "as on MNIST" or "beyond MNIST"; time_s. The parts sum to the
    iteration.
    """
    rows = published_gains()
    rows = rows[(rows["beyond_s_k80"] > 0) & (rows["beyond_s_p100"] > 0)]
    parts = []
    for row in rows.to_dict("records"):
        for gpu in ("k80", "p100"):
            beyond_s = row[f"beyond_s_{gpu}"]
            for part, time_s in (("as on MNIST", row[f"iteration_s_{gpu}"] - beyond_s), ("beyond MNIST", beyond_s)):
                parts.append([row["workload"], row["data"], gpu.upper(), part, time_s])
    return pd.DataFrame(parts, columns=["workload", "data", "machine", "part", "time_s"])


def relative_gains() -> dict[str, float]:
    """Return the published gain of ResNet-18 / that of GoogLeNet, by data set: below 1, the smaller one gains less."""
    gains = published_gains().pivot_table(index="data", columns="workload", values="gain", sort=False)
    return {str(data): float(ratio) for data, ratio in (gains["resnet18"] / gains["googlenet"]).items()}


def host_shares(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the share of an iteration in which the device waits for the host, a row for each profiled case.

    Columns: workload; data, `synthetic` without a data set; data_frac, the phase data; launch_frac, the time of Python
    and of calling operators on a CPU, or in which a GPU waited for launches; host_frac, their sum.

    *Error*: that of `time_limits`, whose operator times come from a pass under the profiler.
    """
    frames = []
    for run in runs:
        shares = time_limits(run).pivot_table(index="case", columns="limit", values="share_frac", aggfunc="sum")
        shares = shares.reindex(columns=["data", "host"]).fillna(0.0)
        shares.columns = pd.Index(["data_frac", "launch_frac"])
        frames.append(run.cases.reindex(columns=["case", "workload", "data"]).merge(shares, on="case"))
    rows = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(
        columns=["workload", "data", "data_frac", "launch_frac"])
    rows = rows.assign(data=rows["data"].fillna("synthetic"), host_frac=rows["data_frac"] + rows["launch_frac"])
    return rows[["workload", "data", "data_frac", "launch_frac", "host_frac"]]


def gains_and_host_shares(runs: Sequence[Run]) -> pd.DataFrame:
    """Return `published_gains` with the `host_shares` of the runs; null if there is no such case.

    A case on synthetic data stands for each data set without a case of its own. An additional column: read, the data
    that the case read, null without a case.
    """
    found = {(row["workload"], row["data"]): row for row in host_shares(runs).to_dict("records")}
    rows = published_gains()
    here = [found.get((row["workload"], row["data"])) or found.get((row["workload"], "synthetic")) or {}
            for row in rows.to_dict("records")]
    shares = pd.DataFrame([[row.get(name) for name in ("data_frac", "launch_frac", "host_frac", "data")]
                           for row in here], rows.index, ["data_frac", "launch_frac", "host_frac", "read"])
    return rows.join(shares.astype(dict.fromkeys(["data_frac", "launch_frac", "host_frac"], "float64")))
