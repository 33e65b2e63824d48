"""Rows of the record's tables of an inference server: its steps, and the device's work by kind of kernel."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from charact.record.schema import Rows
from charact.traces.device_events import Intervals, covered_ns, length_ns, union, without
from charact.traces.events import DeviceEvent, Thread, TraceEvents
from charact.traces.serving.steps import ServingSteps, Step, kind_of


def step_rows(found: ServingSteps, events: TraceEvents) -> Rows:
    """Return rows of the table `serving_steps`."""
    begin_ns = _begin_ns(events)
    cycles = _cycles(found.steps, events)
    rows: Rows = []
    for number, (step, cycle) in enumerate(zip(found.steps, cycles, strict=True)):
        name, replayed = step.name, [event for event in step.work if event.correlation in found.graphs]
        graphs = Counter(found.graphs[correlation] for correlation in {event.correlation for event in replayed})
        host_ns = step.end_ns - step.start_ns
        rows.append({
            "step": number, "start_s": (step.start_ns - begin_ns) / 1e9, "host_s": host_ns / 1e9 if host_ns else None,
            "kind": step.kind, "kind_reason": step.reason, "evidence": step.evidence,
            "num_requests": name.num_requests, "num_context_requests": name.num_context_requests,
            "num_tokens": name.num_tokens, "num_kernels": len(step.work), "num_replays": graphs.total(),
            "graph": next(iter(graphs)) if len(graphs) == 1 else None,
            "kernel_s": sum(map(_length_ns, step.work)) / 1e9, "graph_s": sum(map(_length_ns, replayed)) / 1e9,
            **cycle.columns(),
        })  # fmt: skip
    return rows


def kernel_kind_rows(found: ServingSteps, events: TraceEvents) -> Rows:
    """Return rows of the table `serving_kernels`: all of the device's work, by step kind, graph and kernel kind."""
    times: defaultdict[tuple[int, str | None, str | None, str, int], Counter[str]] = defaultdict(Counter)
    numbers: Counter[tuple[int, str | None, str | None, str, int]] = Counter()
    step_of = {id(event): step for step in found.steps for event in step.work}
    for event in events.device:
        step = step_of.get(id(event))
        key = (int(step is not None), step.kind if step else None, found.graphs.get(event.correlation),
               kind_of(event, found.graphs), int(event.operator is not None))
        times[key][event.name] += event.end_ns - event.start_ns
        numbers[key] += 1
    rows: Rows = []
    for (in_step, kind, graph, kernel_kind, has_operator), by_name in times.items():
        largest, largest_ns = max(by_name.items(), key=lambda each: each[1])
        rows.append({
            "in_step": in_step, "kind": kind, "graph": graph, "kernel_kind": kernel_kind, "has_operator": has_operator,
            "num_kernels": numbers[in_step, kind, graph, kernel_kind, has_operator],
            "device_s": by_name.total() / 1e9, "largest": largest, "largest_s": largest_ns / 1e9})
    return rows


@dataclass(frozen=True)
class _Cycle:
    """A step on the device, and the gap before it by cause; None for a step without work there."""

    device_ns: int | None = None
    cycle_ns: int = 0
    """Time from the end of the steps before to the step's end; of the first step, from its start on the host."""
    busy_ns: int = 0
    """Part of it in which the device worked."""
    idle_ns: int = 0
    """Part of it after the gap in which the device did not work."""
    idle_copy_ns: int = 0
    """Part of that in which the step's thread waited for a copy."""
    gap: tuple[int, int, int, int, int] | None = None
    """Time before the step by cause: launch, queue, copy, host, other kernels; None for a first replay."""

    def columns(self) -> dict[str, float | None]:
        """Return the columns of the table."""
        has_work = self.device_ns is not None
        causes = zip(("launch", "queue", "copy", "host", "kernel"), self.gap or [None] * 5, strict=True)
        return {
            "device_s": None if self.device_ns is None else self.device_ns / 1e9,
            "cycle_s": self.cycle_ns / 1e9 if has_work else None, "busy_s": self.busy_ns / 1e9 if has_work else None,
            "idle_s": self.idle_ns / 1e9 if has_work else None,
            "idle_copy_s": self.idle_copy_ns / 1e9 if has_work else None,
            "gap_s": sum(self.gap) / 1e9 if self.gap is not None else None,
            **{f"gap_{cause}_s": None if part is None else part / 1e9 for cause, part in causes},
        }


def _cycles(steps: Sequence[Step], events: TraceEvents) -> list[_Cycle]:
    """Return the time of each step on the device, and of the gap before it.

    In a gap the device runs no work of a step; that of the first step begins with its span on the host. Copies count
    first, then kernels outside of steps, then calls on the step's thread that wait for their copy. The rest is queue
    after the call that launched the step's first work; before it, launch while the host is in a step, else host. Before
    a replay, which has no span on the host, it is launch.
    """
    if not events.device:
        return [_Cycle(gap=(0, 0, 0, max(0, after.start_ns - before.end_ns), 0)) if before else _Cycle()
                for before, after in zip([None, *steps[:-1]], steps, strict=True)]
    work = sorted(((_first(step), step) for step in steps if step.work), key=lambda each: each[0].start_ns)
    copies, kernels = (union((event.start_ns, event.end_ns) for event in events.device if _copies(event) is copying)
                       for copying in (True, False))
    busy = union([*copies, *kernels])
    waits = _waits(events)
    spans = union((step.start_ns, step.end_ns) for step in steps if step.start_ns < step.end_ns)
    cycles = {}
    reached_ns: int | None = None
    for first, step in work:
        end_ns = max(event.end_ns for event in step.work)
        has_span = step.start_ns < step.end_ns
        begin_ns = reached_ns
        if begin_ns is None:
            begin_ns = min(step.start_ns, first.start_ns) if has_span else first.start_ns
        gap = None if reached_ns is None and not has_span else _causes(
            (begin_ns, max(first.start_ns, begin_ns)), first.launched_ns,
            (copies, kernels, waits.get(step.thread, [])), spans if has_span else [])
        reached_ns = max(begin_ns, end_ns)
        own = min(max(first.start_ns, begin_ns), reached_ns), reached_ns
        idle = without([own], _within(busy, own)) if own[0] < own[1] else []
        waiting_ns = length_ns(idle) - length_ns(without(idle, _within(waits.get(step.thread, []), own)))
        cycles[id(step)] = _Cycle(
            end_ns - first.start_ns, reached_ns - begin_ns, covered_ns(busy, begin_ns, reached_ns),
            length_ns(idle), waiting_ns, gap)
    return [cycles.get(id(step), _Cycle()) for step in steps]


def _causes(gap: tuple[int, int], launched_ns: int | None, covers: tuple[Intervals, Intervals, Intervals],
            spans: Intervals) -> tuple[int, int, int, int, int]:
    """Return the parts of a gap: launch, queue, copy, host, kernel; `covers` has copies, kernels and waits."""
    left = [[gap] if gap[0] < gap[1] else []]
    for cover in covers:
        left.append(without(left[-1], _within(cover, gap)))
    copy_ns, kernel_ns, wait_ns = (length_ns(before) - length_ns(after) for before, after in pairwise(left))
    rest = left[-1]
    unlaunched = [(start, min(end, launched_ns)) for start, end in rest if launched_ns is not None
                  and start < launched_ns]
    outside_ns = length_ns(without(unlaunched, _within(spans, gap))) if spans else 0
    return (length_ns(unlaunched) - outside_ns, length_ns(rest) - length_ns(unlaunched), copy_ns + wait_ns, outside_ns,
            kernel_ns)


def _within(intervals: Intervals, window: tuple[int, int]) -> Intervals:
    first = bisect_right(intervals, window[0], key=lambda each: each[1])
    return intervals[first:bisect_left(intervals, window[1], key=lambda each: each[0])]


def _waits(events: TraceEvents) -> dict[Thread | None, Intervals]:
    """Return the calls that return after the copy that they made, by thread: the host waits for the copy."""
    waits: defaultdict[Thread | None, list[tuple[int, int]]] = defaultdict(list)
    for event in events.device:
        if not _copies(event) or event.correlation is None:
            continue
        launch, returned_ns = events.launches.get(event.correlation), events.copy_ends.get(event.correlation)
        if launch is not None and returned_ns is not None and returned_ns >= event.end_ns:
            waits[launch.thread].append((launch.start_ns, returned_ns))
    return {thread: union(calls) for thread, calls in waits.items()}


def _copies(event: DeviceEvent) -> bool:
    return "memcpy" in event.kind


def _first(step: Step) -> DeviceEvent:
    return min(step.work, key=lambda event: event.start_ns)


def _length_ns(event: DeviceEvent) -> int:
    return event.end_ns - event.start_ns


def _begin_ns(events: TraceEvents) -> int:
    spans = (events.operators, events.marks, events.modules, events.serving, events.device, events.launches.values())
    return min(span.start_ns for each in spans for span in each)
