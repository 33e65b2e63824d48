"""Iterations during which CUPTI samples, and their rows."""

import contextlib
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from charact.execution.loop import Loop
from charact.measure.counters._support.cupti import chip_name, configure, cupti_errors, num_passes, offered_metrics
from charact.measure.counters._support.phase_spans import PhaseTimeline, Span
from charact.measure.counters._support.protocol import Found, UnavailableError
from charact.measure.counters._support.rerun_case import warm_loop
from charact.measure.counters.pm.samples import (
    DRAM_BYTES,
    Chosen,
    Sample,
    chosen_metrics,
    clock_of,
    good_samples,
    metrics_of,
    on_clock,
    sets_of,
    shares,
    totals,
    weight,
)
from charact.record.schema import Rows

NUM_ITERATIONS = 2
NUM_SAMPLES = 2000
"""Approximate number of samples: evaluation takes time, and more are not visible in a plot."""
_SHORTEST_INTERVAL_NS = 10_000
_BURST, _NUM_BURSTS = "burst", 4


def sampled_case(path: Path) -> Found:
    """Create a case and sample its iterations.

    Raises:
        UnavailableError: CUPTI cannot sample.
    """
    with warm_loop(path) as loop:
        return sampled(loop)


def sampled(loop: Loop) -> Found:
    """Sample iterations of a warm loop, one set of metrics after another.

    Raises:
        UnavailableError: CUPTI cannot sample.
    """
    from cupti.pm_sampling import Collector

    def fits(metrics: Sequence[str]) -> bool:
        return num_passes(chip, metrics) == 1

    index = loop.case.device.index or 0
    collector = Collector(device_index=index)
    with cupti_errors():
        collector.enable()  # first: it initializes CUPTI's profiler, which then knows the chip
    try:
        with cupti_errors():
            chip = chip_name(index)
            chosen, missing = chosen_metrics(offered_metrics(chip), fits)
            sets = sets_of(chosen, fits)
        if not sets:
            raise UnavailableError(f"CUPTI can sample none of the counters on {chip}", "use --counters ncu")
        interval_ns = _interval_ns(loop)
        taken = [_sampled_set(collector, loop, one, interval_ns) for one in sets]
    finally:
        collector.disable()
    rows = [row | {"device": str(loop.case.device)} for set_rows, _ in taken for row in set_rows]
    with_values = {row["counter"] for row in rows}
    missing |= {one.counter: "no sample holds a value of it" for one in chosen if one.counter not in with_values}
    return Found(rows, missing, {"chip": chip, "num_iterations": NUM_ITERATIONS, "num_sets": len(sets)} | taken[0][1])


def _interval_ns(loop: Loop) -> int:
    begun_ns = time.perf_counter_ns()
    loop.iteration(contextlib.nullcontext)
    _wait(loop.case.device)
    return max(_SHORTEST_INTERVAL_NS, NUM_ITERATIONS * (time.perf_counter_ns() - begun_ns) // NUM_SAMPLES)


def _sampled_set(collector: Any, loop: Loop, chosen: Sequence[Chosen], interval_ns: int) -> tuple[Rows, dict[str, Any]]:
    """Return rows of one set of metrics, and facts about its iterations."""
    metrics = metrics_of(chosen)
    matrix = torch.ones(512, 512, device=loop.case.device)
    torch.mm(matrix, matrix)  # the first product loads libraries
    _wait(loop.case.device)
    with cupti_errors():
        configure(collector, metrics, interval_ns)
        started_ns = time.perf_counter_ns()
        collector.start()
    try:
        spans = _work(loop, matrix, interval_ns)
    finally:
        with cupti_errors():
            collector.stop()
    max_samples = 1000 + 2 * (time.perf_counter_ns() - started_ns) // interval_ns  # cycles may be shorter than 1 ns
    with cupti_errors():
        decoded = [Sample(one.start_timestamp, one.end_timestamp, dict(zip(metrics, one.metric_values, strict=True)))
                   for one in collector.decode(max_samples=max_samples)]
    samples = good_samples(decoded)
    phases = [span for span in spans if span[2] != _BURST]
    begun_ns = phases[0][0]
    bursts = [(start_ns, end_ns) for start_ns, end_ns, phase in spans if phase == _BURST]
    try:
        clock = clock_of(samples, bursts, _rest_ns(interval_ns))
    except ValueError as error:
        raise UnavailableError(f"phases were not found in CUPTI's {len(decoded)} samples: {error}",
                               "end other programs on the device") from error
    return _rows(on_clock(samples, clock), phases, chosen), {
        "sampling_interval_s": interval_ns / 1e9, "num_samples": len(samples), "clock_error_s": clock.error_ns / 1e9,
        "spans": [[(start_ns - begun_ns) / 1e9, (end_ns - begun_ns) / 1e9, phase]
                  for start_ns, end_ns, phase in phases],
    }


def _work(loop: Loop, matrix: torch.Tensor, interval_ns: int) -> list[Span]:
    """Run iterations between bursts of work with idle time, for the alignment of clocks; return all spans."""
    device = loop.case.device

    def rest() -> None:
        _wait(device)
        time.sleep(_rest_ns(interval_ns) / 1e9)

    def bursts() -> None:
        for _ in range(_NUM_BURSTS):
            with timeline(_BURST):
                torch.mm(matrix, matrix)
            rest()

    timeline = PhaseTimeline(device)
    rest()
    bursts()
    for _ in range(NUM_ITERATIONS):
        loop.iteration(timeline)
    rest()
    bursts()
    return sorted(timeline.spans())


def _rest_ns(interval_ns: int) -> int:
    return max(20 * interval_ns, 1_000_000)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _rows(samples: Sequence[Sample], phases: Sequence[Span], chosen: Sequence[Chosen]) -> Rows:
    """Return rows over all iterations, over each phase, and of the samples."""
    begun_ns, ended_ns = phases[0][0], phases[-1][1]
    of_phase = shares(samples, phases)
    of_all = [part.get("all", 0.0) for part in shares(samples, [(begun_ns, ended_ns, "all")])]
    parts: dict[str | None, list[float]] = {None: of_all}
    for phase in dict.fromkeys(phase for _, _, phase in phases):
        parts[phase] = [part.get(phase, 0.0) for part in of_phase]
    rows: Rows = [{"phase": phase, "counter": counter, "value": value} for phase, part in parts.items()
                  for counter, value in totals(samples, part, chosen, NUM_ITERATIONS).items()]
    for sample, part, inside in zip(samples, of_phase, of_all, strict=True):
        common = {"phase": max(part, key=part.__getitem__, default=None),
                  "time_s": ((sample.start_ns + sample.end_ns) / 2 - begun_ns) / 1e9}
        rows += [common | {"counter": one.counter, "value": sample.values[one.metric] * one.factor} for one in chosen
                 if inside > 0 and one.counter != DRAM_BYTES and math.isfinite(sample.values[one.metric])
                 and weight(sample, one) > 0]
    return rows
