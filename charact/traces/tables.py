"""Rows of the record's tables from a trace."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from charact.core.timeline import sums, with_rest
from charact.core.trace_marks import LAYER_PREFIX
from charact.record.schema import PHASES, Rows
from charact.traces.device import DeviceClock, Intervals, is_communication, union, without
from charact.traces.events import DeviceEvent, Dropped, Operator, TraceEvents
from charact.traces.phases import AttributedTrace, Iteration, Places

MAX_TIMELINE_SNAPSHOTS = 200
_Place = tuple[str, str, str, str | None, str, str | None]
"""Phase, name, operator type, layer, input shapes and type of an operator."""
_OUTSIDE_OPERATORS = Dropped("operators", "operators", "outside of all iterations")
_OUTSIDE_KERNELS = Dropped("kernels", "kernels", "launched outside of all iterations")
_EARLIER_KERNELS = Dropped("kernels", "kernels", "launched before the trace began")


def iteration_rows(iterations: Sequence[Iteration], device: Sequence[DeviceEvent]) -> Rows:
    """Return rows of the table `iterations`; on a device, exposed communication is a phase of its own.

    If the device's clock is the same at all iterations, as when all its work was launched before them, there are no
    device times.
    """
    clock = DeviceClock(device) if device else None
    if clock is not None and not any(clock.at(one.start_ns) < clock.at(one.end_ns) for one in iterations):
        clock = None
    exchanging = union((event.start_ns, event.end_ns) for event in device if is_communication(event))
    computing = union((event.start_ns, event.end_ns) for event in device if not is_communication(event))
    exposed = without(exchanging, computing)
    rows: Rows = []
    for number, iteration in enumerate(iterations):
        host_ns = with_rest(sums((span.start_ns, span.end_ns, span.phase) for span in iteration.spans),
                            iteration.end_ns - iteration.start_ns)
        device_ns = None if clock is None else _device_ns(iteration, clock, exposed)
        if device_ns and exchanging:
            host_ns["communication"] = 0  # the host only launches it, within another phase
        rows += [
            {"iteration": number, "phase": phase, "part": None, "host_s": host_ns[phase] / 1e9,
             "device_s": None if device_ns is None else device_ns[phase] / 1e9}
            for phase in PHASES if phase in host_ns
        ]
    return rows


def _device_ns(iteration: Iteration, clock: DeviceClock, exposed: Intervals) -> dict[str, int]:
    """Return the device time of each phase, between the device times of its start and end."""
    spent: dict[str, int] = defaultdict(int)
    edges = [(iteration.start_ns, "other")]
    for span in iteration.spans:
        edges += [(span.start_ns, span.phase), (span.end_ns, "other")]
    edges.append((iteration.end_ns, "other"))
    for (start_ns, phase), (end_ns, _) in pairwise(edges):
        begun_ns, ended_ns = clock.at(start_ns), clock.at(end_ns)
        alone_ns = _covered_ns(exposed, begun_ns, ended_ns)
        spent[phase] += ended_ns - begun_ns - alone_ns
        spent["communication"] += alone_ns
    return spent


def _covered_ns(intervals: Intervals, start_ns: int, end_ns: int) -> int:
    """Return how much of an interval others cover."""
    first = bisect_right(intervals, start_ns, key=lambda one: one[1])
    last = bisect_left(intervals, end_ns, key=lambda one: one[0])
    return sum(min(end, end_ns) - max(start, start_ns) for start, end in intervals[first:last])


def operator_rows(kept: TraceEvents, places: Places, num_iterations: int) -> Rows:
    """Return rows of the table `operators`, per iteration; operators outside all iterations are dropped and counted."""
    device_ns: dict[int, int] = defaultdict(int)
    for event in kept.device:
        if event.operator is not None:
            device_ns[id(event.operator)] += event.end_ns - event.start_ns
    calls = []
    for operator in kept.operators:
        phase = _operator_phase(operator, places, bool(kept.device))
        if phase is None:
            kept.dropped[_OUTSIDE_OPERATORS] += 1
        else:
            calls.append(((phase, operator.name, operator.operator_type, operator.layer, operator.shapes,
                           operator.dtype), 1, operator.self_ns, device_ns.get(id(operator), 0)))
    return rows_of_calls(calls, num_iterations, on_device=bool(kept.device))


def rows_of_calls(calls: Iterable[tuple[_Place, int, int, int]], num_iterations: int, *, on_device: bool) -> Rows:
    """Return rows of the table `operators`, per iteration, without FLOP and bytes.

    Args:
        calls: phase, name, operator type, layer, input shapes and type; 1, or 0 for a part of another call; self time
            on the host, and time of the device's work that was launched (ns).
        num_iterations: number of iterations with these calls.
        on_device: whether there are device times.
    """
    totals: dict[_Place, list[int]] = defaultdict(lambda: [0, 0, 0])
    for place, number, self_ns, launched_ns in calls:
        total = totals[place]
        total[0] += number
        total[1] += self_ns
        total[2] += launched_ns
    return [
        {"phase": phase, "operator": name, "operator_type": kind, "layer": layer, "input_shapes": shapes,
         "dtype": dtype, "num_calls": num_calls / num_iterations, "self_host_s": self_ns / 1e9 / num_iterations,
         "device_s": launched_ns / 1e9 / num_iterations if on_device else None, "flop": None, "bytes": None}
        for (phase, name, kind, layer, shapes, dtype), (num_calls, self_ns, launched_ns) in totals.items()
    ]


def _operator_phase(operator: Operator, places: Places, on_device: bool) -> str | None:
    phase = places.phase(operator.start_ns)
    communicates = on_device and operator.operator_type == "communication" and phase is not None
    return "communication" if communicates else phase


def kernel_rows(traces: Sequence[AttributedTrace]) -> Rows:
    """Return rows of the table `kernels`, per iteration of all traces.

    Kernels that were launched outside all iterations are dropped and counted.
    """
    totals: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for trace in traces:
        for event in trace.kept.device:
            phase = trace.places.phase(event.launched_ns)
            if phase is not None:
                phase = "communication" if is_communication(event) else phase
                operator = event.operator.name if event.operator else None
                total = totals[phase, operator, event.name, event.geometry]
                total[0] += 1
                total[1] += event.end_ns - event.start_ns
            else:
                trace.kept.dropped[_EARLIER_KERNELS if event.launched_ns is None else _OUTSIDE_KERNELS] += 1
    num_iterations = sum(len(trace.iterations) for trace in traces)
    return [
        {"phase": phase, "operator": operator, "kernel": kernel, "num_calls": num_calls / num_iterations,
         "device_s": spent_ns / 1e9 / num_iterations, "grid": grid, "block": block, "registers": registers,
         "shared_memory_bytes": shared, "occupancy_frac": occupancy}
        for (phase, operator, kernel, (grid, block, registers, shared, occupancy)), (num_calls, spent_ns)
        in totals.items()
    ]


def layer_rows(kept: TraceEvents) -> Rows:
    """Return rows of the table `layers`: the called modules; charact's own annotations lack their class."""
    if any(mark.name.startswith(LAYER_PREFIX) for mark in kept.marks):
        return []
    names = dict.fromkeys(mark.name for mark in kept.modules)
    return [{"layer": name, "layer_type": name.rpartition("_")[0] or name, "num_parameters": None} for name in names]


def memory_rows(kept: TraceEvents, places: Places, iteration: Iteration) -> Rows:
    """Return rows of the table `memory` for one iteration; a trace lacks categories, so all is `unknown`."""
    on_device = 1 if any(one.device_type == 1 for one in kept.allocated) else 0
    snapshots = sorted((one.time_ns, one.num_bytes) for one in kept.allocated if one.device_type == on_device
                     and iteration.start_ns <= one.time_ns <= iteration.end_ns)
    peaks: dict[str, tuple[int, int]] = {}
    for time_ns, num_bytes in snapshots:
        phase = places.phase(time_ns) or "other"
        peaks[phase] = max(peaks.get(phase, (-1, 0)), (num_bytes, time_ns))
    if not any(held for held, _ in peaks.values()):
        return []
    peak = max(peaks, key=lambda phase: peaks[phase])
    every = -(-len(snapshots) // MAX_TIMELINE_SNAPSHOTS)
    top = {time_ns for _, time_ns in peaks.values()}
    timeline = [snapshot for number, snapshot in enumerate(snapshots) if number % every == 0 or snapshot[0] in top]
    common: dict[str, Any] = {"method": "measured", "category": "unknown"}
    return [
        {**common, "kind": "peak", "phase": peak, "bytes": peaks[peak][0]},
        *({**common, "kind": "phase_peak", "phase": phase, "bytes": held} for phase, (held, _) in peaks.items()),
        *({**common, "kind": "timeline", "phase": places.phase(time_ns) or "other", "moment": number,
           "time_s": (time_ns - iteration.start_ns) / 1e9, "bytes": held}
          for number, (time_ns, held) in enumerate(timeline)),
    ]  # fmt: skip
