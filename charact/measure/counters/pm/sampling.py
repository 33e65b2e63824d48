"""Iterations during which CUPTI samples: metrics in sets of one pass, samples on the host's clock, and their rows."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from charact.execution.loop import Loop
from charact.measure.counters._support.cupti import chip_name, configure, cupti_errors, num_passes, offered_metrics
from charact.measure.counters._support.phase_spans import PhaseTimeline, Span
from charact.measure.counters._support.protocol import Found, UnavailableError
from charact.measure.counters._support.rerun_case import warm_loop
from charact.record.schema import Rows

NUM_ITERATIONS = 2
NUM_SAMPLES = 2000
"""Approximate number of samples: evaluation takes time, and more are not visible in a plot."""
_SHORTEST_INTERVAL_NS = 10_000
_BURST, _NUM_BURSTS = "burst", 4


ACTIVE = "sm__cycles_active.sum"
"""Active cycles of multiprocessors; in every set, to find when the device was active."""


DRAM_BYTES = "dram_bytes"
_PERCENT, _OF_32_THREADS = 1 / 100, 1 / 32
Fits = Callable[[Sequence[str]], bool]
"""Returns whether the hardware can count some metrics in one pass; sampling has only choice."""


@dataclass(frozen=True)
class Chosen:
    """A counter and its metric, times a factor.

    A mean over samples is weighted by another metric, the denominator of the share; None weights by time.
    """

    counter: str
    metric: str
    weight: str | None = None
    factor: float = _PERCENT


WANTED = (
    Chosen("warp_occupancy_frac", "sm__warps_active.avg.pct_of_peak_sustained_active", ACTIVE),
    Chosen("nonpredicated_efficiency_frac", "sm__average_thread_inst_executed_pred_on_per_inst_executed_realtime.ratio",
           "sm__inst_executed_realtime.sum", _OF_32_THREADS),
    Chosen("nonpredicated_efficiency_frac", "smsp__thread_inst_executed_pred_on_per_inst_executed.pct",
           "smsp__inst_executed.sum"),
    Chosen("bandwidth_utilization_frac", "dram__throughput.avg.pct_of_peak_sustained_elapsed"),
    Chosen("bandwidth_utilization_frac", "dram__bytes.avg.pct_of_peak_sustained_elapsed"),
    Chosen(DRAM_BYTES, "dram__bytes.sum", factor=1.0),
    Chosen("tensor_pipe_frac", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"),
    Chosen("tensor_pipe_frac", "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed"),
)
"""Counters in order of importance; of several metrics, the first that the chip can sample.

Source: queries of CUPTI 13.0 for every chip from TU102 to GB20B.
"""


def chosen_metrics(offered: AbstractSet[str], fits: Fits) -> tuple[list[Chosen], dict[str, str]]:
    """Return the counters that the chip can sample, and the reasons of the others, by counter."""
    chosen: dict[str, Chosen] = {}
    missing: dict[str, str] = {}
    for choice in WANTED:
        if choice.counter in chosen:
            continue
        names = {name.partition(".")[0] for name in metrics_of([choice])}
        if not names <= offered:
            missing.setdefault(choice.counter, "CUPTI has no metric of it for this chip")
        elif fits(metrics_of([choice])):
            chosen[choice.counter] = choice
        else:
            missing[choice.counter] = ("the chip counts it in more than one pass, and sampling has one: "
                                       "use --counters ncu")
    return list(chosen.values()), {name: reason for name, reason in missing.items() if name not in chosen}


def metrics_of(chosen: Sequence[Chosen]) -> list[str]:
    """Return the distinct metrics of some counters."""
    weights = [choice.weight for choice in chosen if choice.weight is not None]
    return list(dict.fromkeys([ACTIVE, *weights, *(choice.metric for choice in chosen)]))


def sets_of(chosen: Sequence[Chosen], fits: Fits) -> list[list[Chosen]]:
    """Split counters into sets that fit; each counter goes to the first set with room for it."""
    sets: list[list[Chosen]] = []
    for choice in chosen:
        room = next((held for held in sets if fits(metrics_of([*held, choice]))), None)
        if room is None:
            sets.append([choice])
        else:
            room.append(choice)
    return sets


@dataclass(frozen=True)
class Sample:
    """Metrics of an interval, in ns of the device's clock, later of the host's."""

    start_ns: int
    end_ns: int
    values: Mapping[str, float]


def good_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples without the first, which began before counting, and without those with impossible times.

    Impossible: it ends before it begins, begins before the previous one ended, or is ten times as long as the median.
    """
    lengths = [sample.end_ns - sample.start_ns for sample in samples[1:]]
    longest = 10 * median(lengths) if lengths else 0
    good: list[Sample] = []
    for sample in samples[1:]:
        if 0 < sample.end_ns - sample.start_ns <= longest and (not good or sample.start_ns >= good[-1].end_ns):
            good.append(sample)
    return good


@dataclass(frozen=True)
class Clock:
    """Offset from the device's clock to the host's, and its error bound."""

    offset_ns: int
    error_ns: int


def clock_of(samples: Sequence[Sample], bursts: Sequence[tuple[int, int]], rest_ns: int) -> Clock:
    """Return the clock by which the device is active inside each burst, which host times enclose.

    CUPTI does not document the clock of its samples. A burst begins after its start and ends before its end, which
    bounds the offset on both sides. The tightest bounds of all bursts count, since the host may be delayed in some.

    *Error*: half the distance of the bounds, at least half a sample.

    The samples are in order of time. Half of the bursts are before all other work, half after it; the device is idle
    for `rest_ns` around each.

    Raises:
        ValueError: the samples do not show the bursts.
    """
    runs = _runs(samples, rest_ns // 2)
    half = len(bursts) // 2
    if len(runs) < len(bursts):
        raise ValueError(f"they show {len(runs)} intervals of work instead of at least {len(bursts)}")
    pairs = [*zip(bursts[:half], runs[:half], strict=True), *zip(bursts[-half:], runs[-half:], strict=True)]
    low = max(start_ns - run[0].end_ns for (start_ns, _), run in pairs)
    high = min(end_ns - run[-1].start_ns for (_, end_ns), run in pairs)
    if low > high:
        raise ValueError("they show work of another program")
    return Clock((low + high) // 2, (high - low + 1) // 2)


def _runs(samples: Sequence[Sample], idle_ns: int) -> list[list[Sample]]:
    """Return intervals of samples in which the device is active, separated by idle time."""
    runs: list[list[Sample]] = []
    for sample in samples:
        if sample.values[ACTIVE] > 0:
            if runs and sample.start_ns - runs[-1][-1].end_ns < idle_ns:
                runs[-1].append(sample)
            else:
                runs.append([sample])
    return runs


def on_clock(samples: Sequence[Sample], clock: Clock) -> list[Sample]:
    """Return samples on the host's clock."""
    return [replace(sample, start_ns=sample.start_ns + clock.offset_ns, end_ns=sample.end_ns + clock.offset_ns)
            for sample in samples]


def shares(samples: Sequence[Sample], spans: Sequence[Span]) -> list[dict[str, float]]:
    """Return for each sample its share of time in each phase; both are in order of time."""
    shares_of_samples: list[dict[str, float]] = []
    first = 0
    for sample in samples:
        while first < len(spans) and spans[first][1] <= sample.start_ns:
            first += 1
        shares_of: dict[str, float] = {}
        for start_ns, end_ns, phase in spans[first:]:
            if start_ns >= sample.end_ns:
                break
            inside_ns = min(end_ns, sample.end_ns) - max(start_ns, sample.start_ns)
            shares_of[phase] = shares_of.get(phase, 0.0) + max(0, inside_ns) / (sample.end_ns - sample.start_ns)
        shares_of_samples.append(shares_of)
    return shares_of_samples


def totals(samples: Sequence[Sample], parts: Sequence[float], chosen: Sequence[Chosen], num_iterations: int
           ) -> dict[str, float]:
    """Return counters over parts of samples: weighted means, and bytes per iteration.

    `parts` is the share of each sample that counts.
    """
    counters: dict[str, float] = {}
    for choice in chosen:
        finite = [(sample, part) for sample, part in zip(samples, parts, strict=True)
                 if part > 0 and math.isfinite(sample.values[choice.metric])]
        if choice.counter == DRAM_BYTES:
            if finite:
                total = sum(sample.values[choice.metric] * part for sample, part in finite)
                counters[choice.counter] = total / num_iterations
            continue
        weights = [part * weight(sample, choice) for sample, part in finite]
        if sum(weights) > 0:
            weighed = sum(sample.values[choice.metric] * share
                          for (sample, _), share in zip(finite, weights, strict=True))
            counters[choice.counter] = choice.factor * weighed / sum(weights)
    return counters


def weight(sample: Sample, chosen: Chosen) -> float:
    """Return a sample's weight in a mean: the denominator of its share, else its duration."""
    if chosen.weight is None:
        return float(sample.end_ns - sample.start_ns)
    amount = sample.values[chosen.weight]
    return float(amount) if math.isfinite(amount) else 0.0


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
        taken = [_sampled_set(collector, loop, metric_set, interval_ns) for metric_set in sets]
    finally:
        collector.disable()
    rows = [row | {"device": str(loop.case.device)} for set_rows, _ in taken for row in set_rows]
    with_values = {row["counter"] for row in rows}
    missing |= {choice.counter: "no sample holds a value of it" for choice in chosen
                if choice.counter not in with_values}
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
        decoded = [Sample(raw.start_timestamp, raw.end_timestamp, dict(zip(metrics, raw.metric_values, strict=True)))
                   for raw in collector.decode(max_samples=max_samples)]
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
        if inside > 0:
            rows += [common | {"counter": choice.counter, "value": sample.values[choice.metric] * choice.factor}
                     for choice in chosen if choice.counter != DRAM_BYTES and weight(sample, choice) > 0
                     and math.isfinite(sample.values[choice.metric])]
    return rows
