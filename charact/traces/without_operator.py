"""Work of the device that no operator of the trace launched, such as kernels of replayed graphs."""

from collections import Counter, defaultdict
from typing import NamedTuple

from charact.core.operator_types import WITHOUT_OPERATOR
from charact.traces.device_events import is_communication
from charact.traces.events import TraceEvents
from charact.traces.phases import AttributedTrace

_GRAPH_LAUNCH = "GraphLaunch"
_MAX_GRAPHS = 20


class Origin(NamedTuple):
    """Where work without an operator belongs."""

    phase: str
    name: str
    """The graph that it came from, else `WITHOUT_OPERATOR`."""
    operator_type: str


def work_without_operator(trace: AttributedTrace) -> dict[Origin, tuple[int, int]]:
    """Return the number and the time (ns) of the device's events in iterations that no operator launched.

    Replays of equal kernels and grids, whatever their order, are of one graph. Graphs are numbered by their first
    replay.
    """
    graphs = replayed_graphs(trace.events)
    work: dict[Origin, tuple[int, int]] = {}
    for event, phase in zip(trace.events.device, trace.launch_phases, strict=True):
        if event.operator is None and phase is not None:
            kind = WITHOUT_OPERATOR
            if is_communication(event):
                phase = kind = "communication"
            origin = Origin(phase, graphs.get(event.correlation, WITHOUT_OPERATOR), kind)
            number, spent_ns = work.get(origin, (0, 0))
            work[origin] = number + 1, spent_ns + event.end_ns - event.start_ns
    return work


def replayed_graphs(events: TraceEvents) -> dict[int | None, str]:
    """Return names of graphs by the correlation of their launch; replays of equal kernels and grids are of one."""
    launches = {number for number, launch in events.launches.items() if _GRAPH_LAUNCH in launch.name}
    replays: defaultdict[int | None, Counter[tuple[str, str | None]]] = defaultdict(Counter)
    for event in events.device if launches else ():
        if event.correlation in launches:
            replays[event.correlation][event.name, event.geometry[0]] += 1
    numbers: dict[frozenset[tuple[tuple[str, str | None], int]], int] = {}
    names: dict[int | None, str] = {}
    for correlation, kernels in replays.items():
        number = numbers.setdefault(frozenset(kernels.items()), len(numbers) + 1)
        size = "1 kernel" if kernels.total() == 1 else f"{kernels.total()} kernels"
        names[correlation] = f"graph {number}, {size}" if number <= _MAX_GRAPHS else "other graphs"
    return names
