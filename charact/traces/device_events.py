"""Device events: their launches, the device's busy time, and device times for times on the host."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate

from charact.traces.collective_names import is_collective
from charact.traces.events import BEFORE_ALL_NS, DeviceEvent, Operator, Thread, TraceEvents

Intervals = list[tuple[int, int]]
"""Disjoint starts and ends, by time."""


def union(intervals: Iterable[tuple[int, int]], tolerance_ns: int = 0) -> Intervals:
    """Return the union of intervals; those at most the tolerance apart are joined."""
    joined: Intervals = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1] + tolerance_ns:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def without(intervals: Intervals, covered: Intervals) -> Intervals:
    """Return the parts of intervals that others do not cover."""
    left: Intervals = []
    place = 0
    for start, end in intervals:
        while place < len(covered) and covered[place][1] <= start:
            place += 1
        behind = place
        while behind < len(covered) and covered[behind][0] < end:
            if start < covered[behind][0]:
                left.append((start, covered[behind][0]))
            start = max(start, covered[behind][1])
            behind += 1
        if start < end:
            left.append((start, end))
    return left


def length_ns(intervals: Intervals) -> int:
    """Return the total length of intervals."""
    return sum(end - start for start, end in intervals)


def covered_ns(intervals: Intervals, start_ns: int, end_ns: int) -> int:
    """Return how much of the time from a start to an end others cover."""
    first = bisect_right(intervals, start_ns, key=lambda each: each[1])
    last = bisect_left(intervals, end_ns, key=lambda each: each[0])
    return sum(min(end, end_ns) - max(start, start_ns) for start, end in intervals[first:last])


def is_communication(event: DeviceEvent) -> bool:
    """Return whether a kernel exchanges data between ranks."""
    return event.kind == "kernel" and is_collective(event.name)


def is_copy(event: DeviceEvent) -> bool:
    """Return whether an event copies memory; fills count as computation."""
    return event.kind in ("gpu_memcpy", "memcpy")


def find_launches(events: TraceEvents) -> None:
    """Set the launch time and launching operator of every device event, if the trace has them.

    An event without a launch counts as launched with the previous event of its stream, or before the trace began if it
    is the first. If a trace or stream has no links between events and launches, events count as launched when they
    started, the latest possible time. The operator of a launch without an operator's id is the innermost one that runs
    in its thread. Operators get the time of the device's work that they launched.
    """
    events.device.sort(key=lambda event: event.start_ns)
    unnamed: defaultdict[Thread, list[tuple[int, int, Operator | DeviceEvent]]] = defaultdict(list)
    before: dict[tuple[str, str], int] = {}
    for event in events.device:
        launch = None if event.correlation is None else events.launches.get(event.correlation)
        external_id = event.external_id if launch is None or event.external_id is not None else launch.external_id
        event.operator = None if external_id is None else events.by_id.get(external_id)
        stream = event.device, event.stream
        if launch is not None:
            event.launched_ns = launch.start_ns
            grid, block, registers, shared, occupancy = event.geometry
            event.geometry = (grid or launch.geometry[0], block or launch.geometry[1], registers,
                              launch.geometry[3] if shared is None else shared, occupancy)
            if event.operator is None:
                unnamed[launch.thread].append((launch.start_ns, 0, event))
        elif event.operator is not None:
            event.launched_ns = event.operator.start_ns
        else:
            event.launched_ns = before.get(stream)
        if event.launched_ns is not None:
            before[stream] = max(event.launched_ns, before.get(stream, event.launched_ns))
    for event in events.device:
        if event.launched_ns is None and (event.correlation is None or (event.device, event.stream) not in before):
            event.launched_ns = event.start_ns
    for operator in events.operators if unnamed else ():
        if operator.thread in unnamed:
            unnamed[operator.thread].append((operator.start_ns, -operator.end_ns, operator))
    for moments in unnamed.values():
        stack: list[Operator] = []
        for start_ns, _, caller_or_event in sorted(moments, key=lambda moment: moment[:2]):
            while stack and stack[-1].end_ns <= start_ns:
                stack.pop()
            if isinstance(caller_or_event, Operator):
                stack.append(caller_or_event)
            else:
                caller_or_event.operator = stack[-1] if stack else None
    for event in events.device:
        if event.operator is not None:
            event.operator.device_ns += event.end_ns - event.start_ns


def device_ns_by_operator(events: TraceEvents) -> dict[int, int]:
    """Return the device time by the external id of the launching operator, after launches are found."""
    return {number: operator.device_ns for number, operator in events.by_id.items() if operator.device_ns}


class EventTimes:
    """Converts times on the host to the times that CUDA events recorded there would have.

    That is the end of all work launched before, except communication, but no earlier than the host time itself.
    """

    def __init__(self, events: Iterable[DeviceEvent]) -> None:
        work = [event for event in events if not is_communication(event)]
        self._earlier_ns = max((event.end_ns for event in work if event.launched_ns is None),
                               default=BEFORE_ALL_NS)
        # An event that counts as launched when it started is not launched yet at exactly that time.
        launched = sorted((event.launched_ns + (event.launched_ns == event.start_ns), event.end_ns)
                          for event in work if event.launched_ns is not None)
        self._launched_ns = [launched_ns for launched_ns, _ in launched]
        self._ended_ns = list(accumulate((end_ns for _, end_ns in launched), max))

    def at(self, moment_ns: int) -> int:
        """Return the device time for a time on the host."""
        number = bisect_right(self._launched_ns, moment_ns)
        ended_ns = self._ended_ns[number - 1] if number else BEFORE_ALL_NS
        return max(moment_ns, ended_ns, self._earlier_ns)
