"""Work of the device that no operator of the trace launched, such as kernels of replayed graphs."""

from collections import Counter, defaultdict
from typing import NamedTuple

from charact.core.operator_types import WITHOUT_OPERATOR
from charact.traces.device import is_communication
from charact.traces.events import TraceEvents
from charact.traces.phases import AttributedTrace

_GRAPH_LAUNCH = "GraphLaunch"
_MAX_GRAPHS = 20


class Work(NamedTuple):
    """A kernel, copy or fill without an operator."""

    phase: str
    name: str
    """The graph that it came from, else `WITHOUT_OPERATOR`."""
    operator_type: str
    device_ns: int


def work_without_operator(trace: AttributedTrace) -> list[Work]:
    """Return the work of the device in iterations that no operator launched.

    Replays of equal kernels and grids, whatever their order, are of one graph. Graphs are numbered by their first
    replay.
    """
    events = [event for event in trace.events.device if event.operator is None]
    graphs = replayed_graphs(trace.events)
    work = []
    for event in events:
        phase = trace.phase_at(event.launched_ns)
        if phase is not None:
            exchanges = is_communication(event)
            work.append(Work("communication" if exchanges else phase,
                             graphs.get(event.correlation, WITHOUT_OPERATOR),
                             "communication" if exchanges else WITHOUT_OPERATOR, event.end_ns - event.start_ns))
    return work


def operator_coverage_frac(trace: AttributedTrace) -> float | None:
    """Return the share of the device's time in iterations that operators launched; None without such time."""
    covered_ns = whole_ns = 0
    for event in trace.events.device:
        if trace.phase_at(event.launched_ns) is not None:
            whole_ns += event.end_ns - event.start_ns
            covered_ns += event.end_ns - event.start_ns if event.operator is not None else 0
    return covered_ns / whole_ns if whole_ns else None


def replayed_graphs(events: TraceEvents) -> dict[int | None, str]:
    """Return names of graphs by the correlation of their launch; replays of equal kernels and grids are of one."""
    launches = events.launches
    replays: defaultdict[int | None, Counter[tuple[str, str | None]]] = defaultdict(Counter)
    for event in events.device:
        if event.correlation in launches and _GRAPH_LAUNCH in launches[event.correlation].name:
            replays[event.correlation][event.name, event.geometry[0]] += 1
    numbers: dict[frozenset[tuple[tuple[str, str | None], int]], int] = {}
    names: dict[int | None, str] = {}
    for correlation, kernels in replays.items():
        number = numbers.setdefault(frozenset(kernels.items()), len(numbers) + 1)
        size = "1 kernel" if kernels.total() == 1 else f"{kernels.total()} kernels"
        names[correlation] = f"graph {number}, {size}" if number <= _MAX_GRAPHS else "other graphs"
    return names
