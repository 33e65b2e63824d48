"""What importing a large trace costs, beside torch-tb-profiler and HolisticTraceAnalysis: time and peak memory.

Run `python benchmarks/trace_import.py TRACE`, with any trace of torch.profiler. A trace of 100 MB or more is made of it
by repeating it; the others are installed from PyPI into an environment that is thrown away. Each reads the trace in a
process of its own, by turns, and computes what it tells of the iterations, the device's use and the kernels; none
draws anything. charact writes its record, too. Beside it stands all of `charact import`, which draws the report and
whatever the trace takes 1.5 s and 190 MB for the libraries of that.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

NUM_ROUNDS = 5
APART = 1_000_000_000
"""Ids of one repetition differ from those of the one before by so much."""
_IDS = ("External id", "correlation", "Sequence number", "Python id", "Python parent id")
_PEERS = ("torch-tb-profiler==0.4.3", "HolisticTraceAnalysis==0.5.0", "pandas<3", "tensorboard", "setuptools<81")

_RECORD = """
import sys
from pathlib import Path
from charact.traces.cases import trace_case
from charact.traces.reader import read_trace
from charact.record.writer import RunWriter
writer = RunWriter(Path(sys.argv[1]).parent, "record", {})
writer.add_case(*trace_case(read_trace(Path(sys.argv[1])), "trace"))
writer.close("complete")
writer.publish()
"""
_TENSORBOARD = """
import sys, tempfile
from torch_tb_profiler.profiler.data import RunProfileData
RunProfileData.parse("worker", None, sys.argv[1], tempfile.mkdtemp())
"""
_HOLISTIC = """
import sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]})
found.get_temporal_breakdown(visualize=False)
found.get_comm_comp_overlap(visualize=False)
found.get_gpu_kernel_breakdown(visualize=False)
"""


class Cost(NamedTuple):
    """What a process took: seconds until it ended, seconds of processors, and the most memory that it held."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def main() -> None:
    """Make the trace and the environment, and read the trace with each by turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trace", type=Path, help="a trace of torch.profiler (.json or .json.gz)")
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS)
    parser.add_argument("--megabytes", type=int, default=100, help="least size of the trace that is made of it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        trace = directory / "large.json"
        num_events = repeat(options.trace, trace, options.megabytes * 10**6)
        peers = make_peers(directory / "peers")
        commands = {
            "charact": [sys.executable, "-c", _RECORD, str(trace)],
            "charact import": [sys.executable, "-m", "charact", "import", "--quiet", "--out", scratch, str(trace)],
            "torch-tb-profiler": [peers, "-c", _TENSORBOARD, str(trace)],
            "HolisticTraceAnalysis": [peers, "-c", _HOLISTIC, str(trace)],
        }
        costs: dict[str, list[Cost]] = {name: [] for name in commands}
        for number in range(options.rounds):
            for name in list(commands)[:: -1 if number % 2 else 1]:
                costs[name].append(cost_of(commands[name], directory / "log"))
        print(f"{options.trace.name} repeated: {trace.stat().st_size / 1e6:.0f} MB, {num_events:,} events; "
              f"{options.rounds} rounds")
    tell(costs)


def repeat(source: Path, target: Path, least_bytes: int) -> int:
    """Write the events of a trace again and again, each time later and with ids of their own; returns their number."""
    text = source.read_bytes()
    whole = json.loads(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text)
    events = whole.pop("traceEvents")
    spans = [event for event in events if event.get("ph") == "X"]
    length = max(event["ts"] + event["dur"] for event in spans) - min(event["ts"] for event in spans)
    steps = len({event["name"] for event in spans if event["name"].startswith("ProfilerStep#")})
    written = 0
    with target.open("w", encoding="utf-8") as file:
        file.write(json.dumps(whole)[:-1] + ', "traceEvents": [')
        number = 0
        while file.tell() < least_bytes:
            for event in events if number == 0 else spans:
                file.write((",\n" if written else "") + json.dumps(_later(event, number, length, steps)))
                written += 1
            number += 1
        file.write("]}")
    return written


def _later(event: Mapping[str, Any], number: int, length: float, steps: int) -> dict[str, Any]:
    """An event as the repetition of that number has it."""
    moved = dict(event)
    if "ts" in event:
        moved["ts"] = round(event["ts"] + number * (length + 10), 3)
    if event["name"].startswith("ProfilerStep#"):
        moved["name"] = f"ProfilerStep#{int(event['name'].removeprefix('ProfilerStep#')) + number * steps}"
    if isinstance(event.get("args"), dict):
        moved["args"] = {key: value + number * APART if key in _IDS and isinstance(value, int) else value
                         for key, value in event["args"].items()}
    return moved


def make_peers(directory: Path) -> str:
    """Install the others into an environment; returns its interpreter."""
    venv.create(directory, with_pip=True)
    python = str(directory / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *_PEERS], check=True)
    return python


def cost_of(command: Sequence[str], log: Path) -> Cost:
    """Run a command, and tell what it cost.

    Raises:
        RuntimeError: it failed.
    """
    with log.open("wb") as output:
        begun = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)[:200]} failed: {log.read_text(errors='replace')[-2000:]}")
    return Cost(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def tell(costs: Mapping[str, Sequence[Cost]]) -> None:
    """Print what each cost, and the others over charact round by round."""
    for name, measured in costs.items():
        wall_s, cpu_s, peak_bytes = (median(values) for values in zip(*measured, strict=True))
        print(f"  {name:22} {wall_s:6.2f} s   {cpu_s:6.2f} CPU-s   {peak_bytes / 1e6:6.0f} MB at most")
    for ours in ("charact", "charact import"):
        for theirs in ("torch-tb-profiler", "HolisticTraceAnalysis"):
            pairs = list(zip(costs[theirs], costs[ours], strict=True))
            times = [their.wall_s / our.wall_s for their, our in pairs]
            shares = [our.peak_bytes / their.peak_bytes for their, our in pairs]
            print(f"  {ours}: {median(times):.1f} times as fast as {theirs} ({min(times):.1f} to {max(times):.1f}), "
                  f"with {median(shares):.2f} of its memory")


if __name__ == "__main__":
    main()
