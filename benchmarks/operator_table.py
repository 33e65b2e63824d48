"""What reading the operator table costs, beside torch.profiler's own `key_averages()`, for one ResNet-18 iteration.

Run `python benchmarks/operator_table.py`.
"""

from contextlib import nullcontext
from functools import partial
from statistics import median

import torch
from conditions import conditions
from interleaved import timed
from torch.profiler import ProfilerActivity, profile

import charact.measure  # noqa: F401  (quiets torch, so it comes first)
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.measure.passes.event_tree import read_event_tree
from charact.measure.passes.marks import layer_marks, phase_mark
from charact.measure.passes.operators import ProfiledIteration, operator_rows
from charact.workload.registry import find_workload

NUM_PROFILES = 15


def main() -> None:
    """Profile one iteration again and again, and read each profile in every way."""
    workload = find_workload("resnet18").prepare()
    loop = Loop(Case(workload, 32, 16, "train", "fp32", torch.device("cpu"), DataRequest()))
    for _ in range(3):
        loop.iteration(lambda _: nullcontext())
    seconds: dict[str, list[float]] = {"event tree alone": [], "operator table of charact": [], "key_averages()": []}
    num_operators = 0
    for _ in range(NUM_PROFILES):
        with layer_marks(loop.model), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            loop.iteration(phase_mark)
        results = profiler.profiler.kineto_results
        assert results is not None
        seconds["event tree alone"].append(timed(results.experimental_event_tree)())
        seconds["operator table of charact"].append(timed(partial(_operator_table, profiler))())
        num_operators = len(read_event_tree(profiler).operators)
        seconds["key_averages()"].append(timed(profiler.key_averages)())
    print(f"{conditions()}\none resnet18 iteration, {num_operators} operator calls, {NUM_PROFILES} profiles")
    for name, values in seconds.items():
        low, middle, high = (1e3 * pick(values) for pick in (min, median, max))
        print(f"  {name:27} {middle:8.2f} ms (median; {low:.2f} to {high:.2f})")
    ratios = [ours / theirs for ours, theirs in
              zip(seconds["operator table of charact"], seconds["key_averages()"], strict=True)]
    print(f"  operator table over key_averages(): {median(ratios):.3f}")


def _operator_table(profiler: profile) -> object:
    return operator_rows([ProfiledIteration(read_event_tree(profiler), None)])


if __name__ == "__main__":
    main()
