"""What tests of predictions compare: predicted and real iterations of a case."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from charact.datasets._common.request import DataRequest
from charact.execution.batches import Batches
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.execution.running_layer import RunningLayer
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Recorder, record_iteration
from charact.measure.memory_estimate.estimator import Estimator, MemoryEstimate
from charact.measure.memory_estimate.replay import HostAllocator, replay
from charact.measure.memory_estimate.target_devices import this_device
from charact.measure.passes.memory_pass import memory_pass
from charact.workload.registry import find_workload

CPU = torch.device("cpu")


def case_of(name: str, size: int, batch: int, mode: str = "train", precision: str = "fp32", variant: str | None = None,
            **options: Any) -> Case:
    return Case(find_workload(name).prepare(variant), size, batch, mode, precision, CPU, DataRequest(), **options)


@contextlib.contextmanager
def fed(case: Case) -> Iterator[Loop]:
    """A loop that sees the batch that predictions are of."""
    loop = Loop(case)
    loop.feed(Batches(case, loop.dataset, shuffle=case.training, whole=True).first(case.data.seed))
    yield loop
    loop.close()


def tensor_peak(trace: AllocationTrace) -> int:
    return replay(trace, HostAllocator(), [0] * len(trace.ops)).curve.peak.total_bytes


def real_trace(case: Case) -> AllocationTrace:
    """AllocationTrace of a later iteration on real tensors."""
    with fed(case) as loop:
        recorder = Recorder(RunningLayer(loop.model))
        record_iteration(loop, recorder)
        return record_iteration(loop, recorder)


def measured_peak(case: Case) -> int:
    """Peak of a later iteration, as measured (bytes)."""
    with fed(case) as loop:
        loop.iteration(lambda _: contextlib.nullcontext())
        return int(memory_pass(loop)[1].peak_bytes)


def predicted(case: Case) -> MemoryEstimate:
    return Estimator(this_device(CPU)).estimate(case)
