"""Samples of the cases of one run, with the repeats that a comparison needs."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.significance import MIN_ITERATIONS, Sample, resampled, timed
from charact.analysis.compare.pairs import Samples
from charact.analysis.compare.times import Timer, further_times
from charact.analysis.operations.timings import call_times
from charact.analysis.profile.breakdown import operator_times, phase_breakdown
from charact.analysis.profile.case_summary import iteration_samples, phase_times
from charact.analysis.training.stages import TRAINING_STAGES, stage_phase_times, stage_times
from charact.record.reader import Run

PUBLISHED = "published without an interval"
_ONE_PASS = "operators are profiled once in each run: several runs give an interval"

CASE = "case"
"""Name of the whole case among its parts."""

_Named = Iterator[tuple[tuple[str, str], Sample]]


@memoize
def time_samples(run: Run, by: str) -> Samples:
    """Return the time of an iteration of each case (s), or of its parts by one of `RATIOS_BY`.

    For a training it is the time of an epoch, for an operation of a call in each direction, for a suite of every brick
    once, for a constructed model its latency.
    """
    # Further times come last: a constructed latency, not the iteration that verified it, is compared with others.
    timers = [*([_TIMERS[by]] if by in _TIMERS else []), *further_times(by)] or [partial(_operators, column=by)]
    samples: Samples = {}
    for (case, name), sample in (named for timer in timers for named in timer(run)):
        is_published = "reference" in run.manifest
        samples.setdefault(case, {})[name] = Sample(sample.value, reason=PUBLISHED) if is_published else sample
    return samples


def _cases(run: Run) -> _Named:
    for case, sample in iteration_samples(run).items():
        yield (case, CASE), sample
    for case, epochs in _epoch_phases(run):
        yield (case, CASE), _mean_epoch(run, case, epochs.groupby("number")["time_s"].sum())
    for of_case, calls in call_times(run).groupby("case", sort=False) if len(run.repetitions) else ():
        directions = [timed(times.tolist()) for _, times in calls.groupby("direction", sort=False)["time_s"]]
        yield (str(of_case), CASE), _summed(directions)


def _phases(run: Run) -> _Named:
    wide: dict[str, Any] = {"columns": "phase", "values": "time_s", "aggfunc": "sum", "fill_value": 0.0}
    for case, rows in phase_times(run).groupby("case", sort=False):
        for phase, times in rows.pivot_table(index="iteration", **wide).items():
            yield (str(case), str(phase)), timed(times.tolist())
    for of_training, epochs in _epoch_phases(run):
        for phase, times in epochs.pivot_table(index="number", **wide).items():
            yield (of_training, str(phase)), _mean_epoch(run, of_training, times)


def _epoch_phases(run: Run) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the phases of the epochs of each training; skips runs without stages, as the tables are slow to compute."""
    if len(run.stages):
        rows = stage_phase_times(run)
        for case, epochs in rows[rows["stage"].isin(TRAINING_STAGES)].groupby("case", sort=False):
            yield str(case), epochs


def epoch_times(run: Run) -> Iterator[tuple[str, "pd.Series[float]"]]:
    """Yield each training case with the times of its epochs (s)."""
    if len(run.stages):
        times = stage_times(run)
        for case, epochs in times[times["stage"].isin(TRAINING_STAGES)].groupby("case", sort=False):
            yield str(case), epochs.groupby("number")["wall_s"].sum()


def epochs_sample(values: "pd.Series[float]", whole: float) -> Sample:
    """Return the sample of a number over all epochs, with the spread of the single epochs' values."""
    if len(values) < MIN_ITERATIONS:
        return Sample(whole, reason=f"fewer than {MIN_ITERATIONS} epochs")
    mean = float(values.mean())
    scale = whole / mean if mean else 1.0
    return Sample(whole, tuple(values.tolist()), lambda: scale * resampled(values.tolist(), np.mean))


def rate(amount: float, time: Sample) -> Sample:
    """Return the sample of an amount over a time."""
    if time.draw is None:
        return replace(time, value=amount / time.value)
    least = None if time.least is None else (amount / time.least[1], amount / time.least[0])
    return Sample(amount / time.value, tuple(amount / repeat for repeat in time.repeats),
                  lambda: amount / np.asarray(time.draws), least=least)


def iteration_rates(run: Run, per_second: "pd.Series[float]") -> Iterator[tuple[str, Sample]]:
    """Yield cases with the sample of a rate by case, which varies with the time of the iterations."""
    times = iteration_samples(run)
    for case, value in per_second.dropna().items():
        time = times[str(case)]
        yield str(case), rate(value * time.value, time)


def _mean_epoch(run: Run, case: str, walls: "pd.Series[float]") -> Sample:
    return epochs_sample(walls, float(walls.sum()) / (run.entry(case).passes.training.num_epochs or len(walls)))


def _summed(samples: list[Sample]) -> Sample:
    """Return the sample of the sum of times that were measured in the same repetitions."""
    value = sum(sample.value for sample in samples)
    if reason := next((sample.reason for sample in samples if sample.reason), None):
        return Sample(value, reason=reason)
    repeats = tuple(map(sum, zip(*(sample.repeats for sample in samples), strict=False)))
    # Wider than the interval of the sum; exact for a single direction.
    ends = [sample.least for sample in samples if sample.least is not None]
    least = (sum(low for low, _ in ends), sum(high for _, high in ends)) if len(ends) == len(samples) else None
    return Sample(value, repeats, lambda: np.sum([np.asarray(sample.draws) for sample in samples], axis=0), least=least)


def _problems(run: Run) -> _Named:
    if not len(run.repetitions):
        return
    names = run.table("problems").set_index(["case", "direction"])["problem"].to_dict()
    for (case, direction), times in call_times(run).groupby(["case", "direction"], sort=False)["time_s"]:
        if (case, direction) in names:  # a damaged record may lack the problem
            yield (str(case), f"{names[case, direction]} {direction}"), timed(times.tolist())


def _operators(run: Run, column: str) -> _Named:
    """Yield parts of the iteration as seen by the profiler, scaled to the timing pass.

    On a CPU the profiler and other load lengthen a phase, but hardly change an operator's share of it.
    """
    rows = operator_times(run)
    on_host = rows["device_s"].isna().groupby(rows["case"]).transform("all")
    timed_s = phase_breakdown(run).set_index(["case", "phase"])["time_s"].to_dict()
    profiled_s = {(entry.case, phase): phase_s for entry in run.entries
                  for phase, phase_s in entry.passes.operators.phase_s.items()}
    # Iterating over Arrow-backed strings of pandas is slow.
    cases, phases = (rows[name].to_numpy("object") for name in ("case", "phase"))
    places = pd.Series(list(zip(cases, phases, strict=True)), index=rows.index, dtype="object")
    scale = places.map(timed_s).astype("float64") / places.map(profiled_s).astype("float64")
    rows["time_s"] *= scale.where(on_host & scale.notna(), 1.0)
    yield from _sums(rows, column, "time_s")


def _sums(rows: pd.DataFrame, column: str, seconds: str) -> _Named:
    sums: dict[Any, float] = rows.groupby(["case", column], sort=False)[seconds].sum().to_dict()
    for (case, name), value in sums.items():
        yield (case, name), Sample(value, reason=_ONE_PASS)


_TIMERS: dict[str, Timer] = {"case": _cases, "phase": _phases, "problem": _problems,
                             "kernel": lambda run: _sums(run.kernels, "kernel", "device_s")}
