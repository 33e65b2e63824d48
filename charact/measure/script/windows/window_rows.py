"""Rows of the table `windows`: all windows of a program, also of the iterations in its event log. No torch in here."""

from bisect import bisect_right
from collections.abc import Sequence

from charact.core.timeline import Iteration, host_and_device_ns
from charact.measure.script.spans.event_log_reader import EventLog
from charact.measure.script.windows.time_histogram import TimeHistogram
from charact.measure.script.windows.window import Window
from charact.record.schema import PHASES, Rows

_QUANTILES = {"median_s": 0.5, "p90_s": 0.9, "p99_s": 0.99}


def window_rows(log: EventLog, iterations: Sequence[Iteration], *, training: bool) -> Rows:
    """Return rows of the table `windows` for a mode; none if the program ended before its event log was full.

    `iterations` are the timed ones of the mode in the event log. They make windows as long as the longest
    of the log's own, so that all windows can be compared.
    """
    if not log.windows:
        return []
    began_ns = log.last("began").get("time_ns", log.iterations[0].start_ns if log.iterations else 0)
    windows = [*_of_event_log(log, iterations, began_ns, max(each.end_ns - each.start_ns for each in log.windows)),
               *log.windows]
    rows: Rows = []
    for number, window in enumerate(windows):
        times = window.of(training)
        if not times.num_iterations:
            continue
        place = {"window": number, "start_s": (window.start_ns - began_ns) / 1e9,
                 "end_s": (window.end_ns - began_ns) / 1e9, "num_iterations": times.num_iterations}
        rows.append({**place, "phase": None, **_times(times.wall, times.num_iterations),
                     "rss_bytes": window.rss_bytes, "allocated_bytes": window.allocated_bytes})
        rows += [{**place, "phase": phase, **_times(times.phases[phase], times.num_iterations),
                  "rss_bytes": None, "allocated_bytes": None} for phase in PHASES if phase in times.phases]
    return rows


def _times(times: TimeHistogram, num_iterations: int) -> dict[str, float]:
    return {"sum_s": times.sum_ns / 1e9, "max_s": times.max_ns / 1e9,
            **{name: times.quantile_ns(share_frac, num_iterations) / 1e9 for name, share_frac in _QUANTILES.items()}}


def _of_event_log(log: EventLog, iterations: Sequence[Iteration], began_ns: int, length_ns: int) -> list[Window]:
    samples = log.rows("memory")
    windows: dict[int, Window] = {}
    for iteration in iterations:
        number = (iteration.start_ns - began_ns) // max(length_ns, 1)
        start_ns = began_ns + number * length_ns
        window = windows.setdefault(number, Window(start_ns, start_ns))
        window.end_ns = iteration.end_ns
        lengths = host_and_device_ns(iteration, lambda each: each.phase, "other")
        window.of(iteration.training).add(iteration.duration_ns, {
            phase: host_ns if device_ns is None else device_ns for phase, (host_ns, device_ns) in lengths.items()})
    for window in windows.values():
        index = bisect_right(samples, window.end_ns, key=lambda sample: sample[0]) - 1
        if index >= 0 and samples[index][0] >= window.start_ns:
            _, window.rss_bytes, window.allocated_bytes = samples[index]
    return list(windows.values())
