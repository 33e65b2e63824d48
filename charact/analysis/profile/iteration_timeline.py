"""Phases, operators and kernels of one iteration over time, from the trace of the operator pass."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from charact.core.errors import UserError
from charact.record.reader import Run
from charact.traces.events import DeviceEvent, Operator, Thread
from charact.traces.phases import attribute
from charact.traces.reader import read_trace

MAX_TRACE_BYTES = 32 << 20
"""Largest trace file that is read; a larger one takes seconds."""
_MAX_TRACKS = 16
"""Maximum number of threads, and of streams: those with most events."""
_MAX_DEPTH = 20
"""Maximum number of nested operators."""
_COLUMNS = ["track", "depth", "start_s", "length_s", "name", "layer", "kind"]

_Row = tuple[str, int, int, int, str, str | None, str]


@dataclass(frozen=True)
class IterationTimeline:
    """Spans of one iteration.

    Columns of `spans`: track ('phases', a thread or a stream); depth of nesting in the track, from 0; start_s since the
    start of the iteration; length_s; name; layer, null outside any; kind, a phase or an operator type.
    """

    spans: pd.DataFrame
    length_s: float
    """Time from the start of the iteration to its end, or to the end of its last kernel."""
    num_left_out: int
    """Number of operators and kernels that are left out: too short, or nested in 20 others."""
    num_other_tracks: int
    """Number of threads and streams that are left out because others have more events."""


def iteration_timeline(run: Run, case: str, least_frac: float) -> IterationTimeline:
    """Return the last iteration of a case's trace, without operators and kernels below a share of the iteration.

    *Error*: the profiler lengthens short operators, and the time between operators.
    """
    path = run.trace(case)
    if path is None:
        raise UserError("the run has no trace of this case")
    if path.stat().st_size > MAX_TRACE_BYTES:
        raise UserError(f"the trace has more than {MAX_TRACE_BYTES >> 20} MiB: open it in a trace viewer")
    trace = attribute(read_trace(path).events)
    if not trace.iterations:
        raise UserError("the trace has no events")
    iteration = trace.iterations[-1]
    start_ns = iteration.start_ns
    operators = [operator for operator in trace.events.operators if start_ns <= operator.start_ns < iteration.end_ns]
    kernels = [event for event in trace.events.device
               if event.launched_ns is not None and start_ns <= event.launched_ns < iteration.end_ns]
    end_ns = max([iteration.end_ns, *(event.end_ns for event in kernels)])
    if end_ns == start_ns:
        raise UserError("the trace has no events with a duration")
    threads, streams = Counter(operator.thread for operator in operators), Counter(map(_stream, kernels))
    shown = {key for counts in (threads, streams) for key, _ in counts.most_common(_MAX_TRACKS)}
    phases = [("phases", 0, span.start_ns, span.end_ns - span.start_ns, span.phase, None, span.phase)
              for span in iteration.intervals]
    on_device = [(_stream(event), 0, event.start_ns, event.end_ns - event.start_ns, event.name,
                  event.operator.layer if event.operator else None,
                  event.operator.operator_type if event.operator else "other")
                 for event in sorted(kernels, key=_stream) if _stream(event) in shown]
    tracks = [*phases, *_threads(operators, trace.outlined.main, shown), *on_device]
    least_ns = least_frac * (end_ns - start_ns)
    wide = [row for row in tracks if row[3] >= least_ns and row[1] < _MAX_DEPTH]
    names = run.texts("operator", [row[4] for row in wide])
    layers = run.texts("layer", [row[5] or "" for row in wide])
    spans = pd.DataFrame([(track, depth, (begin_ns - start_ns) / 1e9, length_ns / 1e9, name, layer or None, kind)
                          for (track, depth, begin_ns, length_ns, _, _, kind), name, layer
                          in zip(wide, names, layers, strict=True)], columns=_COLUMNS)
    return IterationTimeline(spans, (end_ns - start_ns) / 1e9, len(tracks) - len(wide),
                             len(threads) + len(streams) - len(shown))


def _stream(event: DeviceEvent) -> str:
    return f"device {event.device}, stream {event.stream}"


def _threads(operators: Sequence[Operator], main: Thread | None, shown: set[Thread | str]) -> Iterable[_Row]:
    """Return operators by thread, the program's loop first; a nested operator is one deeper than its caller."""
    by_thread: dict[Thread, list[Operator]] = defaultdict(list)
    for operator in operators:
        if operator.thread in shown:
            by_thread[operator.thread].append(operator)
    for thread in sorted(by_thread, key=lambda thread: thread != main):
        track = "main thread" if thread == main else f"process {thread[0]}, thread {thread[1]}"
        running: list[int] = []
        for operator in sorted(by_thread[thread], key=lambda operator: (operator.start_ns, -operator.end_ns)):
            while running and running[-1] <= operator.start_ns:
                running.pop()
            yield (track, len(running), operator.start_ns, operator.end_ns - operator.start_ns, operator.name,
                   operator.layer, operator.operator_type)
            running.append(operator.end_ns)
