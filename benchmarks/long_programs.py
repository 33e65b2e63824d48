"""Costs of recording a program of many iterations: time per iteration, and the size of what it leaves.

Run `python benchmarks/long_programs.py [--millions 10]`. The iterations have six spans and no work of their own. Those
until the event log is full are compared with those afterwards, in windows of time.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from conditions import conditions

from charact.measure.script.session import FLUSH_SLICES, MAX_SLICES
from charact.measure.script.spans.event_log import EventLogWriter
from charact.measure.script.spans.iterations import StepCounter
from charact.measure.script.spans.recorder import Kind, SpanRecorder
from charact.measure.script.windows import window_log
from charact.measure.script.windows.window_log import read_windows
from charact.measure.script.windows.window_recorder import WindowRecorder

SPANS = ((Kind.FETCH, 100), (Kind.FORWARD, 1), (Kind.LOSS, 0), (Kind.UPDATE, 1), (Kind.BACKWARD, 0), (Kind.STEP, 50))
PER_FLUSH = FLUSH_SLICES // len(SPANS)
PARTS = 10


def drive(recorder: SpanRecorder, num_iterations: int) -> None:
    """Record iterations without work."""
    for _ in range(num_iterations):
        for kind, owner in SPANS:
            recorder.enter(kind, owner)
            recorder.leave()


def resident_mb() -> float:
    """Return the resident set of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=float, default=10.0, help="iterations in windows, in millions")
    num_flushes = int(parser.parse_args().millions * 1e6 / PER_FLUSH / PARTS)
    print(conditions())
    window_log.WINDOW_NS = 10_000_000  # as many windows as a program of days has
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        recorder, log = SpanRecorder(), EventLogWriter(directory)
        recorder.on = True
        since = time.process_time()
        while log.num_slices <= MAX_SLICES:
            drive(recorder, PER_FLUSH)
            log.slices(recorder.take(), int)
        each_us = (time.process_time() - since) / log.num_slices * len(SPANS) * 1e6
        print(f"event log: {each_us:.1f} µs per iteration, {resident_mb():.0f} MB resident")
        windows = WindowRecorder(directory, StepCounter(), lambda: (None, None))
        for part in range(PARTS):
            since = time.process_time()
            for _ in range(num_flushes):
                drive(recorder, PER_FLUSH)
                windows.take(recorder.take(), int)
            each_us = (time.process_time() - since) / (num_flushes * PER_FLUSH) * 1e6
            print(f"windows, tenth {part + 1}: {each_us:.1f} µs per iteration, {resident_mb():.0f} MB resident")
        windows.close()
        written, _, _ = read_windows(directory)
        print(f"{sum(each.num_iterations for each in written):,} iterations in {len(written):,} windows; "
              f"{sum(path.stat().st_size for path in directory.iterdir()) / 1e6:.1f} MB on disk")


if __name__ == "__main__":
    main()
