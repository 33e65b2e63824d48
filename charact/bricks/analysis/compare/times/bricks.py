"""Times of suites, of their bricks, and of constructed models."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from charact.analysis.common.significance import Sample, timed
from charact.analysis.compare.samples import CASE
from charact.bricks.analysis.tables import brick_summary, model_summary, round_times, suite_times, time_by_layers
from charact.core.statistics import student_factor
from charact.record.reader import Run

_Samples = Iterator[tuple[tuple[str, str], Sample]]

_MANY = 1000
"""Degrees of freedom from which Student's t equals the normal distribution."""


def _cases(run: Run) -> _Samples:
    """Yield the time of each suite over the rounds with all its bricks, and each model's latency by its best strategy.

    Only equal suites and latencies of the same strategy compare.
    """
    if len(run.brick_times):
        digests = {entry.case: entry.passes.bricks.suite_digest for entry in run.entries}
        for case, totals_s in suite_times(run).groupby("case", sort=False)["suite_s"]:
            digest = digests[str(case)]
            basis = None if digest is None else f"suite {digest[:8]}"
            yield (str(case), CASE), replace(timed(totals_s.tolist()), basis=basis)
    if len(run.constructions):
        yield from _latencies(model_summary(run).assign(part=CASE))


def _phases(run: Run) -> _Samples:
    """Yield the phases of each constructed training, by the plain sum."""
    rows = run.constructions
    return _latencies(rows[rows["strategy"].eq("sequential") & rows["phase"].ne("all")].assign(part=rows["phase"]))


def _latencies(rows: pd.DataFrame) -> _Samples:
    """Yield latencies with 95 % intervals; assumes a normal error of the logarithm."""
    for row in rows.dropna(subset=["latency_s"]).to_dict("records"):
        error_frac = None
        if row["low_s"] > 0:  # neither missing nor 0
            error_frac = math.log(row["high_s"] / row["low_s"]) / (2 * student_factor(_MANY))
        yield (row["case"], row["part"]), Sample(row["latency_s"], error_frac=error_frac, reason="fewer than 6 rounds",
                                                 basis=row["strategy"])


def brick_name(brick: str, layers: str | None) -> str:
    """Return the name of a brick in a comparison."""
    return f"{brick} {layers}" if layers else brick


def _layers(run: Run) -> dict[object, str | None]:
    layers: dict[object, str | None] = brick_summary(run).set_index(["case", "brick"])["layers"].to_dict()
    return layers


def _bricks(run: Run) -> _Samples:
    if len(run.brick_times):
        layers = _layers(run)
        for (case, brick), times_s in round_times(run).groupby(["case", "brick"], sort=False)["time_s"]:
            yield (str(case), brick_name(str(brick), layers.get((case, brick)))), timed(times_s.tolist())


def _layer_types(run: Run) -> _Samples:
    """Yield the time of a suite's bricks by their layer types, over the rounds with all of them, or of a model's."""
    if not len(run.brick_times) and not len(run.constructions):
        return
    layers, rows = _layers(run), round_times(run)
    rows["layers"] = [layers.get(place) or "unknown" for place in zip(rows["case"], rows["brick"], strict=True)]
    for (case, name), times in rows.groupby(["case", "layers"], sort=False):
        by_round = times.pivot_table(index="round", columns="brick", values="time_s").dropna()
        if len(by_round):
            yield (str(case), str(name)), timed(by_round.sum(axis="columns").tolist())
    for row in time_by_layers(run).to_dict("records"):
        yield (row["case"], row["layers"]), Sample(row["time_s"], reason="parts of constructed models have no interval")


TIMES = {"case": _cases, "phase": _phases, "brick": _bricks, "layer_type": _layer_types}
