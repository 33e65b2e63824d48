"""Rows of the record's tables from a trace."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from charact.core import timeline
from charact.core.memory_curve import MemoryCurve, Place, Snapshot
from charact.core.timeline import Interval, Iteration
from charact.core.trace_marks import LAYER_PREFIX
from charact.record.schema import PHASES, Rows
from charact.traces.device_events import EventTimes, covered_ns, is_communication, union, without
from charact.traces.events import TraceEvents
from charact.traces.phases import AttributedTrace
from charact.traces.without_operator import Origin

_Place = tuple[str, str, str, str | None, str, str | None]
"""Phase, name, operator type, layer, input shapes and type of an operator."""


def iteration_rows(trace: AttributedTrace) -> Rows:
    """Return rows of the table `iterations`, one for each phase of each iteration.

    Times are of the host, and of the device if it has any; then `communication` is what no computation there hides.
    """
    return sorted(timeline.iteration_rows(timed_iterations(trace)),
                  key=lambda row: (row["iteration"], PHASES.index(row["phase"])))


def timed_iterations(trace: AttributedTrace) -> list[Iteration]:
    """Return the iterations of a trace, on a device with its times, and with exposed communication.

    If the device's clock is the same at all iterations, as when all its work was launched before them, there are no
    device times.
    """
    device, iterations = trace.events.device, trace.iterations
    clock = EventTimes(device)
    if not device or not any(clock.at(each.start_ns) < clock.at(each.end_ns) for each in iterations):
        return iterations
    exchanging = union((event.start_ns, event.end_ns) for event in device if is_communication(event))
    computing = union((event.start_ns, event.end_ns) for event in device if not is_communication(event))
    exposed = without(exchanging, computing)
    timed = []
    for iteration in iterations:
        intervals: list[Interval] = []
        reached_ns = iteration.start_ns
        for interval in [*iteration.intervals, Interval("other", iteration.end_ns, iteration.end_ns)]:
            for each in (Interval("other", reached_ns, interval.start_ns), interval):
                begin_ns, end_ns = clock.at(each.start_ns), clock.at(each.end_ns)
                alone_ns = covered_ns(exposed, begin_ns, end_ns)
                intervals.append(replace(each, start_device_ns=begin_ns, end_device_ns=end_ns - alone_ns))
                if exchanging:  # the host only launches it, within another phase
                    intervals.append(Interval("communication", each.end_ns, each.end_ns,
                                              start_device_ns=end_ns - alone_ns, end_device_ns=end_ns))
            reached_ns = interval.end_ns
        timed.append(replace(iteration, intervals=intervals, start_device_ns=clock.at(iteration.start_ns),
                             end_device_ns=clock.at(iteration.end_ns)))
    return timed


def operator_rows(trace: AttributedTrace, without: Mapping[Origin, tuple[int, int]]) -> Rows:
    """Return rows of the table `operators`, per iteration; operators outside all iterations are left out.

    In a trace with operators, the device's work `without` one has rows, too.
    """
    on_device = bool(trace.events.device)
    calls: list[tuple[_Place, int, int, int]] = []
    for operator in trace.events.operators:
        phase = trace.phase_at(operator.start_ns)
        if phase is not None:
            phase = "communication" if on_device and operator.operator_type == "communication" else phase
            calls.append(((phase, operator.name, operator.operator_type, operator.layer, operator.shapes,
                           operator.dtype), 1, operator.self_ns, operator.device_ns))
    if calls:
        calls += [((*origin, None, "[]", None), number, 0, spent_ns) for origin, (number, spent_ns) in without.items()]
    return rows_of_calls(calls, len(trace.iterations), on_device=on_device)


def rows_of_calls(calls: Iterable[tuple[_Place, int, int, int]], num_iterations: int, *, on_device: bool) -> Rows:
    """Return rows of the table `operators`, per iteration, without FLOP and bytes.

    Args:
        calls: phase, name, operator type, layer, input shapes and type; number, 0 for a part of another call; self time
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


def kernel_rows(traces: Sequence[AttributedTrace]) -> Rows:
    """Return rows of the table `kernels`, per iteration of all traces.

    Kernels that were launched outside all iterations are left out.
    """
    totals: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for trace in traces:
        for event, phase in zip(trace.events.device, trace.launch_phases, strict=True):
            if phase is not None:
                phase = "communication" if is_communication(event) else phase
                operator = event.operator.name if event.operator else None
                total = totals[phase, operator, event.name, event.geometry]
                total[0] += 1
                total[1] += event.end_ns - event.start_ns
    num_iterations = sum(len(trace.iterations) for trace in traces)
    return [
        {"phase": phase, "operator": operator, "kernel": kernel, "num_calls": num_calls / num_iterations,
         "device_s": spent_ns / 1e9 / num_iterations, "grid": grid, "block": block, "registers": registers,
         "shared_memory_bytes": shared, "occupancy_frac": occupancy}
        for (phase, operator, kernel, (grid, block, registers, shared, occupancy)), (num_calls, spent_ns)
        in totals.items()
    ]


def layer_rows(events: TraceEvents) -> Rows:
    """Return rows of the table `layers`: the called modules; charact's own annotations lack their class."""
    if any(mark.name.startswith(LAYER_PREFIX) for mark in events.marks):
        return []
    names = dict.fromkeys(mark.name for mark in events.modules)
    return [{"layer": name, "layer_type": name.rpartition("_")[0] or name, "num_parameters": None} for name in names]


def memory_rows(trace: AttributedTrace) -> Rows:
    """Return rows of the table `memory` for the last iteration; a trace lacks categories, so all is `unknown`."""
    allocated, iteration = trace.events.allocated, trace.iterations[-1]
    on_device = 1 if any(each.device_type == 1 for each in allocated) else 0
    snapshots = sorted((each.time_ns, each.num_bytes) for each in allocated if each.device_type == on_device
                       and iteration.start_ns <= each.time_ns <= iteration.end_ns)
    curve = MemoryCurve([Snapshot(Place(time_ns, iteration.phase_at(time_ns)), {("unknown", None): held}, held)
                         for time_ns, held in snapshots])
    return curve.rows("measured", iteration.start_ns) if any(held for _, held in snapshots) else []
