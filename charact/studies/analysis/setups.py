"""Published times of Aalto's four setups, with the times here, and the published ratios of the claims."""

from collections.abc import Sequence
from statistics import geometric_mean

import pandas as pd

from charact.analysis.training.stages import inference_summary, rate_intervals
from charact.record.reader import Run
from charact.studies.analysis.hardware import operation_sums
from charact.studies.claims import Value
from charact.studies.published import NUM_SAMPLES, interval_text, published_cases, trainings

SETUPS = {"setup_1": "aalto-1", "setup_2": "aalto-2", "setup_3": "aalto-3", "setup_4": "aalto-4"}
"""Columns of the setups, with their published tables."""
_NUM_PREDICTED = 10_000
"""Number of images that the study predicts."""
_MEASURED = ["workload", "total_cold_s", "total_warm_s", "load_warm_s", "samples_per_s", "interval_frac"]


def setup_names() -> dict[str, str]:
    """Return the name of each setup by its column: RTX 2060 (setup 1)."""
    machines = published_cases(list(SETUPS.values())).drop_duplicates("reference").set_index("reference")["machine"]
    return {column: f"{machines[reference].removeprefix('GeForce ')} ({column.replace('_', ' ')})"
            for column, reference in SETUPS.items()}


def execution_times(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the total execution times: columns workload, data, num_epochs, the setups, and those of `trainings`."""
    rows = _by_setup("mode == 'train'", "workload", "data", "num_epochs")
    return trainings(runs, rows.assign(num_samples=rows["data"].map(NUM_SAMPLES)))


def inference_times(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the total inference times, a row for each workload.

    Columns: workload; the setups; total_cold_s, total_warm_s, load_warm_s and samples_per_s of `inference_summary`;
    modelled_s, the warm load + 10,000 images / samples_per_s; interval_frac, half of the 95 % interval of the
    prediction as a share of it, and modelled_interval, the interval of modelled_s as text. Null if not run.
    """
    frames = []
    for run in runs:
        found = inference_summary(run).merge(run.cases[["case", "workload"]], on="case")
        frames.append(found.assign(interval_frac=found["case"].map(rate_intervals(run, "prediction")))[_MEASURED])
    frames = [frame for frame in frames if len(frame)]
    ours = pd.concat(frames) if frames else pd.DataFrame(columns=_MEASURED)
    ours = ours.astype(dict.fromkeys(_MEASURED[1:], "float64"))
    rows = _by_setup("mode == 'infer'", "workload").merge(ours, on="workload", how="left")
    rows["modelled_s"] = rows["load_warm_s"] + _NUM_PREDICTED / rows["samples_per_s"]
    intervals = [interval_text(row["modelled_s"], row["interval_frac"], row["load_warm_s"])
                 for row in rows.to_dict("records")]
    return rows.assign(modelled_interval=pd.Series(intervals, rows.index, dtype="object"))


def set_times(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the times of the sets of basic operations: columns set, the setups, and those of `operation_sums`."""
    return _by_setup("set.notna()", "set").merge(operation_sums(runs), on="set", how="outer")


def inference_ratio(times: pd.DataFrame) -> Value:
    """Return the modelled inference time of Model B / that of Model A, from rows of `inference_times`."""
    here_s = times.drop_duplicates("workload").set_index("workload")["modelled_s"]
    ratio = float(here_s["model_b"] / here_s["model_a"])
    return Value() if pd.isna(ratio) else Value(ratio)


def published_ratios() -> dict[str, float]:
    """Return the published ratios by the names of the claims: geometric means over the setups."""
    setups = list(SETUPS)
    trained = _by_setup("mode == 'train'", "workload", "data").set_index(["workload", "data"])[setups].T
    predicted = _by_setup("mode == 'infer'", "workload").set_index("workload")[setups].T
    sets = _by_setup("set.notna()", "set").set_index("set")[setups].T
    ratios = {
        "training": trained["model_b", "mnist"] / trained["model_a", "mnist"],
        "data": trained["model_a", "fashion_mnist"] / trained["model_a", "mnist"],
        "inference": predicted["model_b"] / predicted["model_a"],
        "sparse": sets["smm"] / sets["dmm"],
        "convolution": trained["convolve2d", "fashion_mnist"] / sets["smm"],
    }  # fmt: skip
    return {name: geometric_mean(ratio.astype("float64").dropna()) for name, ratio in ratios.items()}


def _by_setup(condition: str, *keys: str) -> pd.DataFrame:
    """Return the published times that meet a condition: a row for each of the keys, a column for each setup."""
    rows = published_cases(list(SETUPS.values())).query(condition)
    wide = rows.pivot_table(index=list(keys), columns="reference", values="total_s", sort=False)
    columns = {reference: column for column, reference in SETUPS.items()}
    return wide.reindex(columns=list(columns)).rename(columns=columns).rename_axis(columns=None).reset_index()
