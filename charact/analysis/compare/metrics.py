"""Ratios of metrics to the baseline's: time, throughput, memory, accuracy, energy and total times."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from charact.analysis.common.pass_status import pass_reason
from charact.analysis.common.script_attribution import time_outside
from charact.analysis.common.significance import ONE_VALUE, Judgement, Sample, Values, timed
from charact.analysis.compare.pairs import Pair, measured, pairs, typed
from charact.analysis.compare.run_groups import Group, memoize_comparison
from charact.analysis.compare.samples import CASE, PUBLISHED, Samples, epochs_sample, num_epochs, time_samples
from charact.analysis.efficiency.utilization import energy
from charact.analysis.memory.composition import memory_peaks
from charact.analysis.profile.case_summary import iteration_times
from charact.analysis.training.stages import TRAINING_STAGES, inference_summary, prediction_metrics, stage_times
from charact.record.reader import Run

METRICS = ("time", "throughput", "peak_memory", "process_memory", "accuracy", "energy", "total_time", "inference_time",
           "measured_time", "program_time")
"""Metrics in this order have the units s, samples/s, bytes, bytes, a fraction of 1, J per iteration, s, s, s, s."""

HIGHER_IS_BETTER = frozenset({"throughput", "accuracy"})

EXACT_METRICS = frozenset({"peak_memory"})
"""Metrics that are counted: every difference is significant."""

_PASSES = {"peak_memory": "memory", "energy": "counters"}
"""Metrics that an optional pass measures, with the name of the pass."""


@memoize_comparison
def metric_ratios(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the ratio of each metric to the baseline's, for each group and matched case.

    Columns: case; side; metric; base and value in the metric's unit; ratio, low, high, p_value, significant and reason
    as in `ratios`.

    Metrics: time, as in `ratios` by case; throughput, samples/s, for a training in its training stage; peak_memory,
    that PyTorch allocated, measured if available, else estimated; process_memory, the largest resident set of a
    script's process, also of NumPy and Python, without charact's passes; accuracy, for a training the best validation
    accuracy; energy, of the device per iteration; total_time, of a training; inference_time, warm load plus inference
    on the data set; measured_time, an iteration of a constructed model that was also run; program_time, of a script
    from its start to its end, without charact's passes, given to the first of its cases.

    *Error*: the interval of an accuracy covers the choice of samples, not the seed. Peak memory is a count, so every
    difference is significant.
    """
    rows = [
        [pair.case, pair.side, metric, *pair.values(metric), *_judged(pair, metric)]
        for pair in pairs(sides, MEASURED) for metric in METRICS
    ]  # fmt: skip
    return typed(rows, ["case", "side", "metric", "base", "value"], ["base", "value"])


def _judged(pair: Pair, metric: str) -> Judgement:
    """Return the judgement of a metric; if the group lacks it, use the reason of the pass that measures it."""
    found = pair.judged(metric)
    name = _PASSES.get(metric)
    if metric in pair.new or pair.base_reason or pair.new_reason or name is None:
        return found
    return found._replace(reason=pass_reason(*pair.place, name) or found.reason)


def metric_samples(run: Run) -> Samples:
    """Return the samples of a run's cases, by case and metric."""
    found: Samples = {(case, "time"): sample for (case, _), sample in time_samples(run, CASE).items()}
    for metric, samples in (("throughput", _rates(run)), ("peak_memory", _peaks(run)),
                            ("process_memory", _process_peaks(run)), ("accuracy", _accuracies(run)),
                            ("energy", _energies(run)), ("total_time", _totals(run)),
                            ("inference_time", _inferences(run)), ("measured_time", _verified(run)),
                            ("program_time", _programs(run))):  # fmt: skip
        found |= {(case, metric): sample for case, sample in samples}
    return found


MEASURED = measured(metric_samples)
"""Fact to gather from each run: samples of its cases by metric."""


def _rates(run: Run) -> Iterator[tuple[str, Sample]]:
    batch_sizes = run.cases.reindex(columns=["case", "batch_size"]).set_index("case")["batch_size"].dropna().to_dict()
    in_training = {case for case, _ in _epochs(run)}
    for (case, _), time in time_samples(run, CASE).items():
        if case in batch_sizes and case not in in_training:
            yield case, _rate(float(batch_sizes[case]), time)
    if not len(run.stages):
        return
    trained = stage_times(run).query("stage == 'training'").dropna(subset=["samples_per_s"])
    for of_case, epochs in trained.groupby("case", sort=False):
        mean = float(epochs["num_samples"].sum() / epochs["wall_s"].sum())
        yield str(of_case), epochs_sample(epochs["samples_per_s"], mean)


def _rate(amount: float, time: Sample) -> Sample:
    """Return an amount divided by a time, with its uncertainty."""
    if time.draw is None:
        return replace(time, value=amount / time.value)
    least = None if time.least is None else (amount / time.least[1], amount / time.least[0])
    return Sample(amount / time.value, tuple(amount / repeat for repeat in time.repeats),
                  partial(_rate_draws, amount, time), least=least)


def _rate_draws(amount: float, time: Sample) -> Values:
    draws = time.draws
    assert draws is not None  # only such times are resampled
    return amount / draws


def _peaks(run: Run) -> Iterator[tuple[str, Sample]]:
    peaks: list[dict[Any, Any]] = memory_peaks(run).to_dict("records")
    for row in peaks:
        for method in ("measured", "predicted"):
            if pd.notna(row[f"{method}_bytes"]):
                yield row["case"], Sample(float(row[f"{method}_bytes"]), basis=method, exact=True)
                break


def _process_peaks(run: Run) -> Iterator[tuple[str, Sample]]:
    for entry in run.manifest["cases"]:
        program = entry.get("passes", {}).get("timing", {}).get("program") or {}
        if program.get("process_peak_bytes"):
            yield entry["case"], Sample(float(program["process_peak_bytes"]), reason=ONE_VALUE)


def _programs(run: Run) -> Iterator[tuple[str, Sample]]:
    found = time_outside(run)
    for case, duration_s in zip(found["case"], found["duration_s"].to_numpy(dtype="float64"), strict=True):
        yield str(case), Sample(float(duration_s), reason=ONE_VALUE)


def _accuracies(run: Run) -> Iterator[tuple[str, Sample]]:
    predicted = prediction_metrics(run).query("metric == 'accuracy'").set_index("case")["value"].dropna().to_dict()
    for entry in run.manifest["cases"]:
        training, inference = (entry.get("passes", {}).get(name, {}) for name in ("training", "inference"))
        best = training.get("best") or {}
        if best.get("metric") == "accuracy":
            yield entry["case"], _proportion(run, best["value"], training.get("num_valid_samples"))
        elif entry["case"] in predicted:
            yield entry["case"], _proportion(run, predicted[entry["case"]], inference.get("num_samples"))


def _proportion(run: Run, value: float, num_samples: int | None) -> Sample:
    if not num_samples:
        return Sample(value, reason=PUBLISHED if "reference" in run.manifest else ONE_VALUE)
    # Two successes and two failures are added, so that an accuracy of 1 also has an error (Agresti and Coull 1998).
    share = (value * num_samples + 2) / (num_samples + 4)
    return Sample(value, reason=ONE_VALUE, error_frac=math.sqrt((1 - share) / share / (num_samples + 4)))


def _energies(run: Run) -> Iterator[tuple[str, Sample]]:
    devices = {entry["case"]: str(entry.get("device")) for entry in run.manifest["cases"]}
    read = energy(run).dropna(subset=["energy_per_iteration_j"])
    for case, rows in read.groupby("case", sort=False):
        of_device = "rapl" if devices[str(case)].startswith("cpu") else "nvml"
        joules = rows.groupby("source", sort=False)["energy_per_iteration_j"].sum().to_dict()
        source = of_device if of_device in joules else str(next(iter(joules)))
        yield str(case), Sample(joules[source], reason=ONE_VALUE, basis=source)


def _verified(run: Run) -> Iterator[tuple[str, Sample]]:
    constructed = set(run.constructions["case"])
    if not constructed:
        return
    for case, walls in iteration_times(run).groupby("case", sort=False)["wall_s"]:
        if case in constructed:
            yield str(case), timed(walls.tolist())


def _epochs(run: Run) -> Iterator[tuple[str, "pd.Series[float]"]]:
    """Yield each training case with the times of its epochs (s)."""
    if not len(run.stages):
        return
    times = stage_times(run)
    for case, epochs in times[times["stage"].isin(TRAINING_STAGES)].groupby("case", sort=False):
        yield str(case), epochs.groupby("number")["wall_s"].sum()


def _totals(run: Run) -> Iterator[tuple[str, Sample]]:
    for case, walls in _epochs(run):
        number = num_epochs(run, case) or len(walls)
        basis = f"{number} epoch{'' if number == 1 else 's'}"
        if "reference" in run.manifest:
            yield case, Sample(float(walls.sum()), reason=PUBLISHED, basis=basis)
        else:
            sample = epochs_sample(walls, float(walls.sum()))
            yield case, replace(sample, basis=basis)


def _inferences(run: Run) -> Iterator[tuple[str, Sample]]:
    published: dict[str, Any] = {
        entry["case"]: entry.get("passes", {}).get("inference", {}) for entry in run.manifest["cases"]}
    if not any(published.values()):
        return
    for row in inference_summary(run).to_dict("records"):
        facts = published[row["case"]]
        if "total_s" in facts:
            yield row["case"], Sample(float(facts["total_s"]), reason=PUBLISHED)
        elif pd.notna(row["total_warm_s"]):
            yield row["case"], Sample(float(row["total_warm_s"]), reason=ONE_VALUE,
                                      basis=f"{facts.get('num_samples')} samples")  # fmt: skip
