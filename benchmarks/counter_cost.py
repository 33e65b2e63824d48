"""What reading counters costs: iterations along which they are read over the same iterations alone, interleaved.

Run `python benchmarks/counter_cost.py [--pairs-frac 0.1]`. Each stretch lasts some half a second, so that it holds
several samples; opening and closing the sources lie before and after it and are told apart. All sources are read that
are there and need no pass of their own.
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
from overhead import MLP

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.measure.counters import chosen_sources
from charact.measure.counters._support.phase_spans import PhaseTimeline
from charact.measure.passes.counters import Sampler
from charact.workload.base import Workload
from charact.workload.registry import find_workload

STRETCH_S = 0.5
NUM_WARMUP = 5


def stretch(loop: Loop, num_iterations: int) -> Callable[[], float]:
    """Some iterations with nothing around them; returns their time."""
    def run() -> None:
        for _ in range(num_iterations):
            loop.iteration(lambda _: nullcontext())

    return timed(run)


def counted(loop: Loop, num_iterations: int, aside_s: dict[str, list[float]]) -> Callable[[], float]:
    """The same under the counter pass's marks and samples; seconds of what lies around it are put aside."""
    def run() -> float:
        timeline = PhaseTimeline(loop.case.device)
        sampler = Sampler(chosen_sources(None), loop.case.device)
        aside_s["opening"].append(timed(sampler.start)())
        seconds = timed(lambda: [loop.iteration(timeline) for _ in range(num_iterations)])()
        aside_s["closing"].append(timed(lambda: sampler.stop(timeline.spans))())
        return seconds

    return run


def report(workload: Workload, size: int, batch_size: int, num_pairs: int) -> None:
    """Print the ratio of one workload."""
    case = Case(workload.prepare(), size, batch_size, "train", "fp32", torch.device("cpu"), DataRequest())
    loop = Loop(case)
    one = stretch(loop, 1)
    iteration_s = median(one() for _ in range(NUM_WARMUP))
    num_iterations = max(2, round(STRETCH_S / iteration_s))
    aside_s: dict[str, list[float]] = defaultdict(list)
    bare, along = stretch(loop, num_iterations), counted(loop, num_iterations, aside_s)
    along()
    print(f"{workload.name}, size {size}, batch {batch_size}: {num_iterations} x {1e3 * iteration_s:.1f} ms")
    print(f"  bare over itself (noise)  {compare(bare, bare, num_pairs)}", flush=True)
    print(f"  counters read along       {compare(along, bare, num_pairs)}")
    print("    beside it: " + ", ".join(f"{part} {1e3 * median(spent):.2f} ms" for part, spent in aside_s.items()),
          flush=True)


def main() -> None:
    """Run the workloads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs-frac", type=float, default=1.0, help="share of the pairs to run, for a quick look")
    frac = parser.parse_args().pairs_frac
    read = ", ".join(source.name for source in chosen_sources(None)
                     if source.taken == "along" and source.available() is None)
    print(f"{conditions()}\nsources: {read}")
    for workload, size, batch_size, num_pairs in [
        (find_workload("resnet18"), 32, 16, 100), (find_workload("rnn_lm"), 35, 20, 60), (MLP(), 8, 16, 100),
    ]:
        report(workload, size, batch_size, max(6, int(frac * num_pairs)))


if __name__ == "__main__":
    main()
