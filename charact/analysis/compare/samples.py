"""Samples of the cases of one run, with the repeats that a comparison needs."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.significance import MIN_ITERATIONS, Sample, Values, resampling, timed
from charact.analysis.compare.times import Timer, further_times
from charact.analysis.operations.timings import call_times
from charact.analysis.profile.breakdown import operator_times, phase_breakdown
from charact.analysis.profile.case_summary import iteration_samples, phase_times
from charact.analysis.training.stages import TRAINING_STAGES, stage_phase_times, stage_times
from charact.record.case_facts import pass_facts
from charact.record.reader import Run

PUBLISHED = "published without an interval"
_ONE_PASS = "operators are profiled once in each run: several runs give an interval"

CASE = "case"
"""Name of the whole case among its parts."""

Samples = dict[tuple[str, str], Sample]
"""By case, and by the name of its timed part."""


@memoize
def time_samples(run: Run, by: str) -> Samples:
    """Return the time of an iteration of each case (s), or of its parts, by name.

    For a training it is the time of an epoch, for an operation of a call in each direction, for a suite of every brick
    once, for a constructed model its latency.

    Args:
        run: the measured run.
        by: 'case', 'phase', 'operator_type', 'operator', 'layer', 'kernel', 'problem', 'brick' or 'layer_type'.
    """
    # Further times come last: a constructed latency, not the iteration that verified it, is compared with others.
    timers = [*([_TIMERS[by]] if by in _TIMERS else []), *further_times(by)] or [partial(_operators, column=by)]
    found = {place: sample for timer in timers for place, sample in timer(run)}
    if "reference" in run.manifest:
        found = {key: Sample(sample.value, reason=PUBLISHED) for key, sample in found.items()}
    return found


def _cases(run: Run) -> Iterator[tuple[tuple[str, str], Sample]]:
    for case, sample in iteration_samples(run).items():
        yield (case, CASE), sample
    for case, epochs in _epoch_phases(run):
        walls = epochs.groupby("number")["time_s"].sum()
        yield (case, CASE), _epochs(walls, num_epochs(run, case))
    for of_case, calls in call_times(run).groupby("case", sort=False) if len(run.repetitions) else ():
        directions = [timed(times.tolist()) for _, times in calls.groupby("direction", sort=False)["time_s"]]
        yield (str(of_case), CASE), _summed(directions)


def _phases(run: Run) -> Iterator[tuple[tuple[str, str], Sample]]:
    for case, rows in phase_times(run).groupby("case", sort=False):
        wide = rows.pivot_table(index="iteration", columns="phase", values="time_s", aggfunc="sum", fill_value=0.0)
        for phase in wide:
            yield (str(case), str(phase)), timed(wide[phase].tolist())
    for of_training, epochs in _epoch_phases(run):
        wide = epochs.pivot_table(index="number", columns="phase", values="time_s", aggfunc="sum", fill_value=0.0)
        for phase in wide:
            yield (of_training, str(phase)), _epochs(wide[phase], num_epochs(run, of_training))


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


def num_epochs(run: Run, case: str) -> int | None:
    """Return the number of epochs that a training finished; None if not recorded."""
    num_finished = run.passes(case).get("training", {}).get("num_epochs")
    return None if num_finished is None else int(num_finished)


def epochs_sample(values: "pd.Series[float]", whole: float) -> Sample:
    """Return the sample of a number over all epochs, with the spread of the single epochs' values."""
    if len(values) < MIN_ITERATIONS:
        return Sample(whole, reason=f"fewer than {MIN_ITERATIONS} epochs")
    mean = float(values.mean())
    draw = resampling(values.tolist(), np.mean)
    return Sample(whole, tuple(values.tolist()), lambda: draw() * (whole / mean if mean else 1.0))


def _epochs(walls: "pd.Series[float]", number: int | None) -> Sample:
    """Return the sample of the mean time of an epoch."""
    return epochs_sample(walls, float(walls.sum()) / (number or len(walls)))


def _summed(samples: list[Sample]) -> Sample:
    """Return the sum of times measured in the same repetitions."""
    value = sum(sample.value for sample in samples)
    if reason := next((sample.reason for sample in samples if sample.reason), None):
        return Sample(value, reason=reason)
    repeats = tuple(map(sum, zip(*(sample.repeats for sample in samples), strict=False)))
    # Wider than the interval of the sum; exact for a single direction.
    ends = [sample.least for sample in samples if sample.least is not None]
    least = (sum(low for low, _ in ends), sum(high for _, high in ends)) if len(ends) == len(samples) else None
    return Sample(value, repeats, partial(_sum_of_draws, samples), least=least)


def _sum_of_draws(samples: list[Sample]) -> Values:
    draws = (sample.draws for sample in samples)
    return np.sum([found for found in draws if found is not None], axis=0)  # type: ignore[no-any-return]


def _problems(run: Run) -> Iterator[tuple[tuple[str, str], Sample]]:
    if not len(run.repetitions):
        return
    names = run.table("problems").set_index(["case", "direction"])["problem"].to_dict()
    for (case, direction), times in call_times(run).groupby(["case", "direction"], sort=False)["time_s"]:
        if (case, direction) in names:  # a damaged record may lack the problem
            yield (str(case), f"{names[case, direction]} {direction}"), timed(times.tolist())


def _operators(run: Run, column: str) -> Iterator[tuple[tuple[str, str], Sample]]:
    """Yield parts of the iteration as seen by the profiler, scaled to the timing pass.

    On a CPU the profiler and other load lengthen a phase, but hardly change an operator's share of it.
    """
    rows = operator_times(run)
    on_host = rows["device_s"].isna().groupby(rows["case"]).transform("all")
    timed_s = phase_breakdown(run).set_index(["case", "phase"])["time_s"].to_dict()
    profiled_s = {
        (entry["case"], phase): seconds for entry in run.manifest["cases"]
        for phase, seconds in pass_facts(entry, "operators").get("phase_s", {}).items()
    }  # fmt: skip
    # Iterating over Arrow-backed strings of pandas is slow.
    cases, phases = (rows[name].to_numpy("object") for name in ("case", "phase"))
    places = pd.Series(list(zip(cases, phases, strict=True)), index=rows.index, dtype="object")
    scale = places.map(timed_s).astype("float64") / places.map(profiled_s).astype("float64")
    rows["time_s"] *= scale.where(on_host & scale.notna(), 1.0)
    yield from _sums(rows.groupby(["case", column], sort=False)["time_s"].sum())


def _kernels(run: Run) -> Iterator[tuple[tuple[str, str], Sample]]:
    yield from _sums(run.kernels.groupby(["case", "kernel"], sort=False)["device_s"].sum())


def _sums(seconds: "pd.Series[float]") -> Iterator[tuple[tuple[str, str], Sample]]:
    places: dict[Any, float] = seconds.to_dict()
    for (case, name), value in places.items():
        yield (case, name), Sample(value, reason=_ONE_PASS)


_TIMERS: dict[str, Timer] = {"case": _cases, "phase": _phases, "problem": _problems, "kernel": _kernels}
