"""Memory of several workloads: against the input, by what it is for, and at one moment for all input sizes."""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.memory.by_input_size import SERIES, case_series, memory_by_size
from charact.analysis.memory.composition import memory_by_phase, memory_composition
from charact.record.reader import Run

_SERIES = [name for name in SERIES if name != "mode"]
_POINT = [*_SERIES, "position", "input_size", "num_positions", "method"]
WEIGHT, RESULT, NO_GROUP = "weight", "mediate result + temporary", "in no group"
"""The two groups of the study, and other memory."""
_GROUPS = {"weights": WEIGHT, "unsharded_weights": WEIGHT, "gradients": WEIGHT, "optimizer_state": WEIGHT,
           "activations": RESULT, "temporary": RESULT, "workspaces": RESULT}
"""Group of each memory category; others are in none."""


def peaks_by_size(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the peaks of training and inference of all runs, smallest input of a series first.

    Columns: workload, variant, batch_size, precision, device and ranks (together: a series); position, input_size and
    num_positions; method; train_bytes and infer_bytes, null if there is no such case; ratio = training / inference.
    """
    if not runs:
        return pd.DataFrame(columns=[*_POINT, "train_bytes", "infer_bytes", "ratio"])
    rows = pd.concat([memory_by_size(run) for run in runs], ignore_index=True)
    rows = rows.assign(order=rows.groupby(_SERIES, sort=False).ngroup())
    peaks = rows.groupby(["order", *_POINT, "mode"])["bytes"].sum().unstack("mode").reindex(columns=["train", "infer"])
    peaks = peaks.add_suffix("_bytes").reset_index().rename_axis(columns=None)
    peaks["ratio"] = peaks["train_bytes"] / peaks["infer_bytes"].where(peaks["infer_bytes"] > 0)
    peaks = peaks.sort_values(["order", "method", "num_positions"], kind="stable", ignore_index=True)
    return peaks.drop(columns="order")


def composition_in_loss(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the memory of training at the peak of the phase loss: after forward, before backward.

    At this moment what is kept for backward is held at every input size. Columns: those of a point of
    `peaks_by_size`; category; bytes; share_frac of that moment. The method is measured if there is a measurement, else
    predicted. Cases that have no phase loss have no rows.
    """
    frames = [case_series(run).query("mode == 'train'").merge(
        memory_by_phase(run).query("phase == 'loss' and bytes > 0"), on="case") for run in runs]
    columns = [*_POINT, "category", "bytes", "share_frac"]
    if not frames:
        return pd.DataFrame(columns=columns)
    rows = pd.concat(frames, ignore_index=True)
    has_both = rows.groupby([*_SERIES, "position", "input_size"])["method"].transform("nunique") > 1
    return rows[~has_both | (rows["method"] == "measured")].reset_index(drop=True)[columns]


def weights_and_results(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the measured memory at the peak of an iteration in the two groups of the study.

    Columns: workload; phase of the peak; group, `WEIGHT` (weights, gradients and optimizer state), `RESULT`
    (activations, temporary memory and workspaces), or `NO_GROUP`; category; bytes; share_frac of the peak.
    """
    columns = ["workload", "phase", "group", "category", "bytes", "share_frac"]
    frames = [run.cases[["case", "workload"]].merge(memory_composition(run), on="case") for run in runs]
    if not frames:
        return pd.DataFrame(columns=columns)
    rows = pd.concat(frames, ignore_index=True).query("method == 'measured' and bytes > 0")
    rows = rows.assign(group=rows["category"].map(_GROUPS).fillna(NO_GROUP))
    place = {name: number for number, name in enumerate([*rows["workload"].unique(), WEIGHT, RESULT, NO_GROUP])}
    return rows.sort_values(["workload", "group"], key=lambda names: names.map(place), kind="stable",
                            ignore_index=True)[columns]
