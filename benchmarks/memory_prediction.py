"""How right predictions of memory are: predicted against measured peak, on this machine's CPU.

Run `python benchmarks/memory_prediction.py [WORKLOAD ...] [--to results.csv]`. Every workload is predicted in training
and inference at four input sizes and two batch sizes, none of which the estimator calibrates at, and then run: the
measured peak is the running sum of the profiler's memory events over a later iteration. At the end 100 sizes of
ResNet-50 are predicted against the clock.
"""

import argparse
import csv
import itertools
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import charact.measure  # noqa: F401  (quiets torch, so it comes first)
from charact.datasets._common.request import DataRequest
from charact.execution.batches import Batches
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.execution.out_of_memory import host_memory_guard
from charact.execution.running_layer import RunningLayer
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Recorder, record_iteration
from charact.measure.memory_estimate.estimator import Estimator
from charact.measure.memory_estimate.fake_program import CannotEstimate
from charact.measure.memory_estimate.replay import HostAllocator, replay
from charact.measure.memory_estimate.target_devices import this_device
from charact.measure.passes.memory_pass import memory_pass
from charact.workload.registry import all_workloads, find_workload

CPU = torch.device("cpu")
SIZES = {"image": (128, 160, 192, 224), "sequence": (32, 48, 64, 96)}
BATCHES = {"image": (1, 4), "sequence": (4, 20)}
DEEP = {"resnet152", "resnet101", "resnet152v2", "model_b", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn", "xception"}
"""Workloads of which a size takes half a minute and more: at smaller ones."""
COLUMNS = ("workload", "mode", "input_size", "batch_size", "measured_bytes", "predicted_bytes", "low_bytes",
           "high_bytes", "tensors_error", "error", "inside", "uncertain", "duration_s")


def measured(case: Case) -> tuple[int, AllocationTrace]:
    """Peak of a later iteration, and the trace of the one after it."""
    loop = Loop(case)
    try:
        loop.feed(Batches(case, loop.dataset, shuffle=case.training, whole=True).first(case.data.seed))
        recorder = Recorder(RunningLayer(loop.model))
        trace = record_iteration(loop, recorder)
        _, facts = memory_pass(loop)
        return facts["peak_bytes"], record_iteration(loop, recorder) if case.training else trace
    finally:
        loop.close()


def compare(estimator: Estimator, case: Case) -> dict[str, Any]:
    """A row: what was predicted and measured of a case."""
    prediction = estimator.estimate(case)
    with host_memory_guard():
        peak_bytes, real = measured(case)
    fake = estimator.trace(case)
    tensors, fake_tensors = (tensor_peak_bytes(trace) for trace in (real, fake))
    return {
        "workload": case.workload.name, "mode": case.mode, "input_size": case.input_size,
        "batch_size": case.batch_size, "measured_bytes": peak_bytes, "predicted_bytes": prediction.peak_bytes,
        "low_bytes": prediction.low_bytes, "high_bytes": prediction.high_bytes,
        "tensors_error": fake_tensors / tensors - 1, "error": prediction.peak_bytes / peak_bytes - 1,
        "inside": prediction.low_bytes <= peak_bytes <= prediction.high_bytes,
        "uncertain": " ".join(prediction.facts["uncertain"]), "duration_s": prediction.facts["duration_s"],
    }


def tensor_peak_bytes(trace: AllocationTrace) -> int:
    """The most that tensors hold at a time, without what operators need inside."""
    sizes = [block.num_bytes for block in trace.blocks]
    workspaces = {number for op in trace.ops if op.name == "aten::mkldnn_rnn_layer" for number in op.made[-1:]}
    sizes = [0 if number in workspaces else num_bytes for number, num_bytes in enumerate(sizes)]
    return replay(trace, HostAllocator(), [0] * len(trace.ops), sizes).peak.total_bytes


def cases_of(name: str) -> Iterator[Case]:
    """The held-out points of a workload."""
    workload = find_workload(name).prepare()
    kind = workload.input_kind
    for mode in ("train", "infer"):
        case = Case(workload, 1, 1, mode, "fp32", CPU, DataRequest())
        for size, batch in itertools.product(SIZES[kind], BATCHES[kind]):
            chosen = max(size // 2 if name in DEEP else size, workload.smallest_input_size)
            yield replace(case, input_size=chosen, batch_size=batch)


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What came out, in lines."""
    errors = [abs(row["error"]) for row in rows]
    mean = math.exp(sum(math.log1p(error) for error in errors) / len(errors)) - 1
    yield f"{len(rows)} points; peak: geometric mean of |error| {mean:.3%}, largest {max(errors):.2%}"
    yield f"tensors: largest |error| {max(abs(row['tensors_error']) for row in rows):.3%}"
    for what, chosen in (("over 2 %", [row for row in rows if abs(row["error"]) > 0.02]),
                         ("not inside the stated range", [row for row in rows if not row["inside"]])):
        yield f"{len(chosen)} {what}"
        for row in chosen:
            yield (f"  {row['workload']} {row['mode']} {row['input_size']} x {row['batch_size']}: {row['error']:+.2%} "
                   f"({row['uncertain']})")


def hundred_sizes() -> str:
    """Time to predict 100 sizes of ResNet-50, calibration and all."""
    case = Case(find_workload("resnet50").prepare(), 1, 8, "train", "fp32", CPU, DataRequest())
    estimator, started = Estimator(this_device(CPU)), time.perf_counter()
    for size in range(32, 832, 8):
        estimator.estimate(replace(case, input_size=size))
    return f"100 sizes of resnet50 training, batch 8: {time.perf_counter() - started:.1f} s"


def main() -> None:
    """Compare, print a line a point, and sum up."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("workloads", nargs="*", help="default: all")
    parser.add_argument("--to", type=Path, help="CSV file for the rows")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.workloads or sorted(all_workloads()):
        estimator = Estimator(this_device(CPU))
        for case in cases_of(name):
            try:
                row = compare(estimator, case)
            except (CannotEstimate, MemoryError, RuntimeError) as error:
                print(f"{case.id}: {str(error).partition(chr(10))[0]}", file=sys.stderr)
                continue
            rows.append(row)
            print(f"{case.id}: measured {row['measured_bytes']:,}, predicted {row['error']:+.3%}, tensors "
                  f"{row['tensors_error']:+.3%}, {'inside' if row['inside'] else 'OUTSIDE'}", flush=True)
            if arguments.to:
                with arguments.to.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    writer.writeheader()
                    writer.writerows(rows)
    print("\n".join(summary(rows)))
    print(hundred_sizes())


if __name__ == "__main__":
    main()
