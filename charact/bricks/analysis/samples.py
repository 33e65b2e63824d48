"""Samples of brick suites and of constructed models, for comparisons."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from charact.analysis.common.significance import Sample, timed
from charact.bricks.analysis.tables import PLAIN, brick_summary, model_summary, round_times, suite_times, time_by_layers
from charact.core.statistics import student_factor
from charact.record.reader import Run

_Found = Iterator[tuple[tuple[str, str], Sample]]

_CONSTRUCTED = "parts of constructed models have no interval"
_FEW_ROUNDS = "fewer than 6 rounds"
_MANY = 1000
"""Degrees of freedom from which Student's t equals the normal distribution."""


def suite_samples(run: Run, name: str) -> _Found:
    """Yield the total time of each suite's bricks, over the rounds with all bricks; only equal suites compare."""
    if not len(run.brick_times):
        return
    for case, totals in suite_times(run).groupby("case", sort=False)["suite_s"]:
        digest = run.passes(str(case)).get("bricks", {}).get("suite_digest")
        basis = None if digest is None else f"suite {str(digest)[:8]}"
        yield (str(case), name), replace(timed(totals.tolist()), basis=basis)


def _totals(times: pd.DataFrame) -> "pd.Series[float]":
    """Return the sum over the bricks of each round that timed all of them."""
    return times.pivot_table(index="round", columns="brick", values="time_s").dropna().sum(axis="columns")


def brick_samples(run: Run) -> _Found:
    """Yield the time of each brick, by its identifier and layers."""
    if not len(run.brick_times):
        return
    names = _layers(run)
    for (case, brick), times in round_times(run).groupby(["case", "brick"], sort=False)["time_s"]:
        yield (str(case), brick_name(str(brick), names.get((case, brick)))), timed(times.tolist())


def brick_name(brick: str, layers: str | None) -> str:
    """Return the name of a brick in a comparison."""
    return f"{brick} {layers}" if layers else brick


def _layers(run: Run) -> dict[object, str | None]:
    found: dict[object, str | None] = brick_summary(run).set_index(["case", "brick"])["layers"].to_dict()
    return found


def layer_samples(run: Run) -> _Found:
    """Yield the time of a suite's bricks, or of a constructed model's segments, by their layer types."""
    if not len(run.brick_times) and not len(run.constructions):
        return
    names = _layers(run)
    rows = round_times(run)
    rows["layers"] = [names.get(place) or "unknown" for place in zip(rows["case"], rows["brick"], strict=True)]
    for (case, layers), times in rows.groupby(["case", "layers"], sort=False):
        totals = _totals(times)
        if len(totals):
            yield (str(case), str(layers)), timed(totals.tolist())
    for row in time_by_layers(run).to_dict("records"):
        yield (row["case"], row["layers"]), Sample(row["time_s"], reason=_CONSTRUCTED)


def constructed_samples(run: Run, name: str) -> _Found:
    """Yield each model's latency by its headline strategy; latencies of different strategies do not compare."""
    if not len(run.constructions):
        return
    for row in model_summary(run).dropna(subset=["latency_s"]).to_dict("records"):
        yield (row["case"], name), _known(row["latency_s"], row["low_s"], row["high_s"], row["strategy"])


def constructed_phases(run: Run) -> _Found:
    """Yield the phases of each constructed training, by the plain sum."""
    rows = run.constructions
    rows = rows[rows["strategy"].isin(PLAIN) & rows["phase"].ne("all")]
    for row in rows.dropna(subset=["latency_s"]).to_dict("records"):
        yield (row["case"], row["phase"]), _known(row["latency_s"], row["low_s"], row["high_s"], row["strategy"])


def _known(latency_s: float, low_s: float, high_s: float, strategy: str) -> Sample:
    """Return the sample of a latency with a 95 % interval; assumes a normal error of its logarithm."""
    if math.isnan(low_s) or low_s <= 0:
        return Sample(latency_s, reason=_FEW_ROUNDS, basis=strategy)
    error_frac = math.log(high_s / low_s) / (2 * student_factor(_MANY))
    return Sample(latency_s, error_frac=error_frac, reason=_FEW_ROUNDS, basis=strategy)
