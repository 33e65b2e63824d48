"""Findings about memory that grows, and memory that data hold."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from charact.analysis.findings._finding import Finding, Place, Saving
from charact.analysis.findings._series import steady_growth
from charact.analysis.findings._watched_case import WatchedCase, watched_cases
from charact.core.units import quantity


def inference_graph(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if a model ran in evaluation mode with gradients enabled and without a backward."""
    models = [model for model in case.settings.models if (model.inference_with_grad or 0) >= 2]
    if not models or (case.trains and not all(other.trains for other in watched_cases(case.run))):
        return  # the inference case has the finding
    model = max(models, key=lambda model: model.inference_with_grad or 0)
    spent_s = float(case.iterations["forward_s"].fillna(0.0).sum())
    rows = case.run.program_iterations.sort_values("start_s").dropna(subset=["rss_bytes"])
    is_own = rows["case"] == case.name
    largest, grown = float(rows["rss_bytes"].max()), 0.0
    if not case.trains:  # the largest growth over consecutive inference iterations
        intervals = rows.loc[is_own, "rss_bytes"].groupby((is_own != is_own.shift()).cumsum()[is_own])
        grown = max([0.0, *(intervals.last() - intervals.first())])
    evidence = [f"{model.name} was called {model.inference_with_grad:,} times in evaluation mode with gradients "
                "enabled, and no backward followed"]
    if grown:
        evidence.append(f"the process grew by {quantity(grown, 'B')} during these calls: activations stay in memory "
                        "as long as a result of their call is kept")
    saving = None if case.trains else Saving(0.0, 0.3 * spent_s, "modelled")
    line = next(iter(case.lines("forward") or case.lines("other")), None)
    yield Finding(
        f"inference of {model.name} records an autograd graph, although no backward follows",
        "run inference under torch.no_grad() or torch.inference_mode(), and keep numbers (.item()) instead of tensors",
        saving, tuple(evidence), memory_bytes=grown or None, memory_frac=grown / largest if grown else 0.2,
        place=line and line.place, phase="forward", setting="grad mode", covers=frozenset({"memory_growth"}))


_LEAST_BYTES = 24 * 2**20
_LEAST_FRAC = 0.05
"""Minimum growth over the run, in bytes and as a share of the largest memory."""
_FEWEST_SAMPLES = 5
"""Samples of memory vary less than times, and those of workers are rare."""
_DROPS_FRAC = 0.25
"""Maximum sum of all drops over that of all rises: memory that is freed again and again is no growth."""
_LATE_FRAC = 0.5
"""Minimum growth in the last quarter of the iterations, over a quarter of the whole: caches fill, and stop to grow."""
_FEWEST_EVALUATIONS, _MUCH_FRAC = 2, 0.15
"""Minimum number of evaluations in which memory grows, and minimum growth as a share of the largest memory."""
_OLD_ITERATIONS = 4
"""Minimum age of a graph that holds those of earlier iterations: the last one's may be alive, too."""
_SERIES = {"allocated_bytes": "memory of the device", "rss_bytes": "memory of the process",
           "workers_bytes": "memory of the loader's workers"}


def memory_growth(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if memory grows steadily, with the variable that holds it if it is known."""
    if len(case.windows):
        yield from _over_windows(case)
        return
    rows = case.iterations.set_index("index")
    rows = rows.assign(num_passes=rows["position"] - np.arange(len(rows)))
    rows = rows.iloc[min(3, len(rows) // 6):]
    for column, name in _SERIES.items():
        sampled = rows[rows[column].notna()]
        # Without what it grew by while charact's passes ran.
        grown = sampled[column].diff().where(sampled["num_passes"].diff() == 0, 0.0)
        series = grown.cumsum() + (sampled[column].iloc[0] if len(sampled) else 0.0)
        line = steady_growth(series, max(_LEAST_BYTES, _LEAST_FRAC * rows[column].max()), _FEWEST_SAMPLES)
        if line is not None and (column == "workers_bytes" or _lasts(series) or _holder(case, line.slope)):
            yield _growth_finding(case, name, line.slope, line.growth, rows[column])
            return
    yield from _within_evaluations(case)


_LEAST_FRAC_OF_WINDOWS = 0.02
"""Minimum growth as a share of the largest memory, if it is steady over many windows of time."""
_NUM_BLOCKS = 40
"""Number of blocks of windows whose medians show whether memory drops."""
_SUFFIXES = (0.0, 0.5, 0.75)
"""Shares of a program's windows that are left out before memory grows, tried in this order."""


def _over_windows(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if memory grows steadily until the end, from the start or from a later window on."""
    windows = case.windows.set_index("num_before")
    for column in ("allocated_bytes", "rss_bytes"):
        for left_out in _SUFFIXES:
            rows = windows.iloc[round(left_out * len(windows)):]
            rows = rows[rows[column].notna()]
            line = steady_growth(rows[column], max(_LEAST_BYTES, _LEAST_FRAC_OF_WINDOWS * windows[column].max()))
            blocks = np.arange(len(rows)) * _NUM_BLOCKS // max(len(rows), 1)
            if line is None or not _lasts(rows[column].groupby(blocks).median()):
                continue
            growth = float(rows[column].iloc[-1] - rows[column].iloc[0])
            hours = float(rows["end_s"].iloc[-1] - rows["end_s"].iloc[0]) / 3600
            since = "" if not left_out else f", from iteration {rows.index[0]:,.0f} on"
            finding = _growth_finding(case, _SERIES[column], line.slope, growth, windows[column])
            evidence = (f"in {len(rows):,} windows of time{since}, it grows by {quantity(1000 * line.slope, 'B')} per "
                        f"1,000 iterations, by {quantity(growth / hours, 'B')} an hour", *finding.evidence[1:])
            yield replace(finding, evidence=evidence)
            return


def _within_evaluations(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if the process's memory grows within each evaluation of a training, and is freed after it."""
    if case.trains or not case.trainings:
        return
    rows = case.iterations
    begins = rows["index"].diff() != 1  # something else ran before
    growths, slopes = [], []
    for _, evaluation in rows.groupby(begins.cumsum()):
        series = evaluation["rss_bytes"].dropna()
        if len(series) >= _FEWEST_SAMPLES and not (series.diff() < 0).any():
            growths.append(float(series.iloc[-1] - series.iloc[0]))
            slopes.append(growths[-1] / float(series.index[-1] - series.index[0]))
    largest = float(rows["rss_bytes"].max())
    if len(growths) < _FEWEST_EVALUATIONS or not min(growths) >= max(_LEAST_BYTES, _MUCH_FRAC * largest):
        return
    growth = float(np.median(growths))
    lines = [line for phase in ("other", "forward") for line in case.all_lines(phase)]
    place = next((line.place for line in lines if ".append(" in (line.place.text or "")), None)
    yield Finding(
        f"the memory of the process grows by {quantity(float(np.median(slopes)), 'B')} a batch in each evaluation, "
        "which keeps what it computes until its end",
        "keep only what the metric needs of each batch, such as output.argmax(-1), or sums that a metric updates; or "
        "write outputs to disk", None,
        (f"in {len(growths)} evaluations, it grows by {quantity(growth, 'B')} each, to {quantity(largest, 'B')}, and "
         "shrinks afterwards",), "high", memory_bytes=growth, memory_frac=growth / largest, place=place,
        phase="forward")


def _lasts(series: "pd.Series[float]") -> bool:
    changes = series.diff()
    late = series.iloc[-1] - series.iloc[len(series) * 3 // 4]
    return bool(-changes[changes < 0].sum() <= _DROPS_FRAC * changes[changes > 0].sum()
                and late >= _LATE_FRAC / 4 * (series.iloc[-1] - series.iloc[0]))


def _growth_finding(case: WatchedCase, name: str, slope: float, growth: float, series: "pd.Series[float]") -> Finding:
    largest = float(series.max())
    evidence = [f"it grows by {quantity(slope, 'B')} an iteration over {len(series)} iterations, by "
                f"{quantity(growth, 'B')} in all, to {quantity(largest, 'B')}"]
    cause, place = f"the {name} grows by {quantity(slope, 'B')} an iteration", None
    remedy = "keep only numbers (loss.item()) or detached tensors (output.detach()) of earlier iterations"
    if not case.trains:
        remedy = ("keep copies of the parts that are needed (output[:, 0].clone()): a part of a tensor keeps all of "
                  "its memory; or write results to disk")
    if name == _SERIES["workers_bytes"]:
        remedy = ("keep the data set's items in one NumPy array or tensor: reading many Python objects "
                  "changes their reference counts, which copies the shared memory into each worker")
        loaders = [each for each in case.settings.loaders if each.num_workers]
        place = Place.of(loaders[0]) if loaders else None
    elif created := case.settings.create_graph:
        cause += ": backward(create_graph=True) makes parameters and gradients refer to each other"
        remedy = ("compute the inner gradient by torch.autograd.grad(loss, inputs, create_graph=True); or set "
                  "parameter.grad = None after each iteration, which breaks the cycle")
        place = Place.of(created)
    elif (holder := _holder(case, slope)) is not None:
        cause += f": {holder.cause}"
        evidence.append(holder.evidence)
        place = holder.place
    return Finding(cause, remedy, None, tuple(evidence), "high" if place else "medium", memory_bytes=growth,
                   place=place, memory_frac=min(growth / largest, 1.0))


class _Holder(NamedTuple):
    """Cause and evidence of growth, and the line that adds to what holds the memory."""

    cause: str
    evidence: str
    place: Place | None


def _holder(case: WatchedCase, slope: float) -> _Holder | None:
    num_before = max(case.inspection.iterations, default=0) + 1
    tensors = [each for each in case.inspection.held_tensors
               if each.bytes > slope * num_before / 4 and each.num_tensors >= num_before / 4]
    tensors.sort(key=lambda each: (each.variable is None, -each.bytes))
    for held in tensors[:1]:
        variable = f" in {held.variable}" if held.variable else ""
        graphs = ", with their autograd graphs" if held.has_graph else ""
        function = f" (grad_fn {held.function})" if held.function else ""
        return _Holder(f"tensors of shape {held.shape} accumulate{variable}{graphs}",
                       f"after {num_before} iterations, {held.num_tensors:,} tensors of shape {held.shape} held "
                       f"{quantity(held.bytes, 'B')}{function}", Place.of(held))
    graph = next((each for each in case.inspection.held_graphs if each.num_nodes > 10 * num_before
                  and num_before * (each.age_frac or 0.0) >= max(_OLD_ITERATIONS, num_before / 4)), None)
    if graph is None:
        return None
    variable = graph.variable or "a tensor"
    return _Holder(f"{variable} keeps the autograd graph of earlier iterations",
                   f"after {num_before} iterations, the autograd graph of {variable} had {graph.num_nodes:,} nodes",
                   Place.of(graph))


def overlapping_windows(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for tensors or arrays of overlapping windows, if they hold much of the memory."""
    for data in case.inspection.held_data:
        if not data.overlaps:
            continue
        length = data.shape[1]
        freed = case.freed_memory(data, 1 - 1 / length)
        if freed is None:
            continue
        yield Finding(
            f"overlapping windows in {data.variable} hold each value of a series {length:,} times",
            f"keep the series only, and cut windows from it: series[index:index + {length}] in __getitem__, or "
            f"series.unfold(0, {length}, 1), which copies nothing", None,
            (f"{data.variable}, of shape {data.shape}, takes {quantity(data.bytes, 'B')}; in all rows that "
             "were looked at, each is the one before shifted by one",), memory_bytes=freed.num_bytes,
            memory_frac=freed.share_frac, place=Place.of(data), setting="windows")


_SIZES = {"uint8": 1, "int8": 1, "int16": 2, "int32": 4, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
          "int64": 8}
"""Bytes of a value."""


def wide_data(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for tensors or arrays whose values fit a narrower type, if they hold much of the memory."""
    for data in case.inspection.held_data:
        if data.overlaps:  # see `overlapping_windows`
            continue
        kind, narrower = data.dtype, data.narrower
        if kind not in _SIZES or narrower not in _SIZES:
            continue
        freed = case.freed_memory(data, 1 - _SIZES[narrower] / _SIZES[kind])
        if freed is None:
            continue
        scale = data.scale or 1
        back = f"batch.to(torch.{kind})" + (f" / {scale}" if scale > 1 else "")
        tensors = f"{data.num_tensors:,} of shape" if data.num_tensors > 1 else "of shape"
        times = f", times {scale}," if scale > 1 else ""
        yield Finding(
            f"{kind} values in {data.variable} fit {narrower}",
            f"store it as {narrower} (dtype=torch.{narrower}), and convert each batch where it is used: {back}", None,
            (f"{data.variable}, {tensors} {data.shape}, takes {quantity(data.bytes, 'B')}; all values that "
             f"were looked at{times} fit {narrower}",), "medium", memory_bytes=freed.num_bytes,
            memory_frac=freed.share_frac, place=Place.of(data), setting="dtype")
