"""What measuring memory costs: an iteration that is watched over one that is not, interleaved.

Run `python benchmarks/memory_cost.py [--pairs-frac 0.1]`. `peak` is each phase's peak, from phase marks and allocations
alone; `composition` adds operators and layers. To be reached: 1.05 and 1.3. The profiler's start and stop lie before
and after an iteration, and so does reading its events: they are told apart, per iteration.
"""

import charact.measure  # noqa: F401  (quiets torch, so it comes first)

# isort: split
import argparse
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median

import torch
from conditions import conditions
from interleaved import compare, timed

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.measure.passes.marks import layer_marks
from charact.measure.passes.memory_pass import MemoryProbe, marked_iteration, probe_for
from charact.workload.registry import find_workload

NUM_WARMUP = 5
CASES = [("resnet18", 32, 16, 200), ("rnn_lm", 35, 20, 200), ("resnet18", 224, 4, 60)]


def watched(loop: Loop, aside_s: dict[str, list[float]], *, operators: bool) -> Callable[[], float]:
    """An iteration under a probe; seconds of what lies around it are put aside."""
    def run() -> float:
        probe: MemoryProbe = probe_for(loop, operators=operators)
        with layer_marks(loop.model) if operators else nullcontext():
            aside_s["start"].append(timed(probe.begin)())
            seconds = timed(lambda: marked_iteration(probe, loop))()
            aside_s["stop"].append(timed(probe.stop)())
        aside_s["read"].append(timed(probe.found)())
        return seconds

    return run


def report(name: str, size: int, batch_size: int, num_pairs: int) -> None:
    """Print the ratios of one workload."""
    case = Case(find_workload(name).prepare(), size, batch_size, "train", "fp32", torch.device("cpu"), DataRequest())
    loop = Loop(case)
    bare = timed(lambda: loop.iteration(lambda _: nullcontext()))
    for _ in range(NUM_WARMUP):
        bare()
    print(f"{name}, size {size}, batch {batch_size}: {1e3 * median(bare() for _ in range(NUM_WARMUP)):.1f} ms")
    print(f"  bare over itself (noise)  {compare(bare, bare, num_pairs)}", flush=True)
    for kind, operators in (("peak", False), ("composition", True)):
        aside_s: dict[str, list[float]] = defaultdict(list)
        one = watched(loop, aside_s, operators=operators)
        one()
        print(f"  {kind:24}  {compare(one, bare, num_pairs)}")
        beside = ", ".join(f"{part} {1e3 * median(seconds):.2f} ms" for part, seconds in aside_s.items())
        print(f"    beside it: {beside}", flush=True)


def main() -> None:
    """Run the three workloads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs-frac", type=float, default=1.0, help="share of the pairs to run, for a quick look")
    frac = parser.parse_args().pairs_frac
    print(f"{conditions()}\na watched iteration's time over a bare one's")
    for name, size, batch_size, num_pairs in CASES:
        report(name, size, batch_size, max(6, int(frac * num_pairs)))


if __name__ == "__main__":
    main()
