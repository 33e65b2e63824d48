"""The same cases in several runs, against the first of them."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from charact.analysis.cases import case_summary, iteration_times
from charact.analysis.memory import is_memory_run, memory_peaks
from charact.analysis.stages import inference_summary, training_summary
from charact.store import Run

_NUM_RESAMPLES = 1000
_COLUMNS = ["case", "batch_size", "median_s", "low_s", "high_s", "samples_per_s", "peak_bytes", "status", "reason"]


def run_comparison(runs: Sequence[Run]) -> pd.DataFrame:
    """Cases that at least two of the runs hold: a row a case and run, cases and runs in the order given.

    Trainings, and cases whose memory alone was looked at, have no iterations to compare: `training_comparison` and
    `memory_comparison` are for them.

    Columns: case; run, the run's position in `runs`; batch_size, median_s, low_s, high_s, samples_per_s, peak_bytes,
    status and reason as in `case_summary`; baseline, the position of the first run in which the case has times; ratio
    = median_s / the baseline's (below 1: faster), with ratio_low to ratio_high, its 95 % interval; ratio is 1, with no
    interval, in the baseline, and null where the case has no times.

    *Error*: the interval is a percentile bootstrap over the iterations of the two runs; it knows nothing of what
    differs between two runs of one program, such as clocks and other load.
    """
    rows = _in_common([case_summary(run).query("kind not in ('training', 'memory')")[_COLUMNS] for run in runs])
    walls = {
        (number, str(case)): times.to_numpy()
        for number, run in enumerate(runs)
        for case, times in iteration_times(run).groupby("case")["wall_s"]
    }
    timed = rows[rows["median_s"].notna()]
    rows["baseline"] = rows["case"].map(timed.groupby("case")["run"].first()).astype("float64")
    ratios = [
        _ratio(walls.get((row["run"], row["case"])), walls.get((row["baseline"], row["case"])),
               is_baseline=row["run"] == row["baseline"])
        for row in rows.to_dict("records")
    ]  # fmt: skip
    rows[["ratio", "ratio_low", "ratio_high"]] = pd.DataFrame(ratios, columns=range(3), dtype="float64")
    return rows


def _in_common(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Rows of the cases that several frames hold, equal cases together, with the frame's position as `run`."""
    filled = [frame.assign(run=number) for number, frame in enumerate(frames) if len(frame)]
    rows = pd.concat(filled) if filled else frames[0].assign(run=0)
    rows = rows[rows.groupby("case")["run"].transform("count") > 1]
    first_seen = {case: number for number, case in enumerate(rows["case"].unique())}
    rows = rows.assign(order=rows["case"].map(first_seen)).sort_values(["order", "run"], ignore_index=True)
    return rows.drop(columns="order")


def training_comparison(runs: Sequence[Run]) -> pd.DataFrame:
    """Trainings that at least two of the runs hold: a row a case and run, cases and runs in the order given.

    Columns: those of `training_summary`; run, the run's position in `runs`; epoch_s, the mean time of an epoch;
    baseline as in `run_comparison`; ratio = epoch_s / the baseline's, null where no epoch was finished.
    """
    return _with_ratio(_in_common([training_summary(run).assign(
        epoch_s=lambda rows: rows["total_s"] / rows["num_epochs"].astype("float64")) for run in runs]), "epoch_s")


def inference_comparison(runs: Sequence[Run]) -> pd.DataFrame:
    """Inferences that at least two of the runs hold, as `training_comparison`.

    Columns: those of `inference_summary`; run; baseline; ratio = total_warm_s / the baseline's.
    """
    return _with_ratio(_in_common([inference_summary(run) for run in runs]), "total_warm_s")


def memory_comparison(runs: Sequence[Run]) -> pd.DataFrame:
    """Cases of runs that look at memory alone, which at least two of them hold.

    Columns: those of `memory_peaks`; run; measured_ratio and predicted_ratio, the peak over that of the first run that
    has it by the same method.
    """
    rows = _in_common([memory_peaks(run) if is_memory_run(run) else memory_peaks(run).iloc[:0] for run in runs])
    for method in ("measured", "predicted"):
        rows[f"{method}_ratio"] = _with_ratio(rows, f"{method}_bytes")["ratio"]
    return rows.drop(columns=["baseline", "ratio"])


def _with_ratio(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    first = rows[rows[column].notna()].groupby("case")
    rows["baseline"] = rows["case"].map(first["run"].first()).astype("float64")
    rows["ratio"] = rows[column] / rows["case"].map(first[column].first()).astype("float64")
    return rows


def _ratio(
    walls: NDArray[np.float64] | None, baseline: NDArray[np.float64] | None, *, is_baseline: bool
) -> tuple[float | None, float | None, float | None]:
    if walls is None or baseline is None:
        return None, None, None
    if is_baseline:
        return 1.0, None, None
    generator = np.random.default_rng(0)  # the same numbers each time the same runs are compared
    medians = [
        np.median(generator.choice(values, (_NUM_RESAMPLES, len(values))), axis=1) for values in (walls, baseline)
    ]
    low, high = np.quantile(medians[0] / medians[1], [0.025, 0.975])
    return float(np.median(walls) / np.median(baseline)), float(low), float(high)
