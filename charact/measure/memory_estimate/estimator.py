"""Memory estimates of cases on a target device, which need not be present."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from charact.execution.case import Case
from charact.measure.memory_estimate.allocation_trace import AllocationTrace
from charact.measure.memory_estimate.caching_allocator import CachingAllocator
from charact.measure.memory_estimate.cuda_kernels import cuda_kernels
from charact.measure.memory_estimate.cuda_workspaces import cuda_inner, held
from charact.measure.memory_estimate.fake_program import FakeProgram, weight_shapes
from charact.measure.memory_estimate.function_trace import trace_function
from charact.measure.memory_estimate.inner_memory import Inner, Range, measured_inner
from charact.measure.memory_estimate.operator_memory import OperatorMemory
from charact.measure.memory_estimate.ranks import fake_process_group, gloo_copies
from charact.measure.memory_estimate.replay import HostAllocator, Replayed, replay
from charact.measure.memory_estimate.target_devices import Target
from charact.record.manifest_passes import PredictionPass, Workspaces
from charact.record.schema import MEMORY_ORIGINS
from charact.workload.base import Workload

_MIN_UNCERTAINTY = 0.002
"""Minimum relative uncertainty of a peak: some allocations bypass the dispatcher, such as random generator states saved
by checkpointing."""
_MIN_UNCERTAINTY_BYTES = 2**14
"""The same for small models: a generator's state has 5 KB, and a model may skip a mask if its values allow."""
_OPERATORS = OperatorMemory()
"""Measured memory of this process's operators."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Estimated memory of an iteration."""

    rows: list[dict[str, Any]]
    """Rows of the table `memory`."""
    facts: PredictionPass

    @property
    def peak_bytes(self) -> int:
        """Return the peak of memory allocated through PyTorch's allocator."""
        return int(self.facts.peak_bytes or 0)

    @property
    def low_bytes(self) -> int:
        """Return the lower bound of the peak."""
        return int(self.facts.low_bytes or 0)

    @property
    def high_bytes(self) -> int:
        """Return the upper bound of the peak."""
        return int(self.facts.high_bytes or 0)

    @property
    def needed_bytes(self) -> int:
        """Return the memory that the device must have: upper bounds of reserved memory and CUDA context."""
        return int(self.facts.needed_bytes or 0)


class Estimator:
    """Estimates the memory of cases; those that differ only in size share a program.

    Args:
        target: the device; a CPU target means this machine's CPU.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._families: dict[Any, _Family] = {}

    def estimate(self, case: Case) -> MemoryEstimate:
        """Estimate the memory of a case.

        Raises:
            CannotEstimate: its model cannot run on fake tensors.
        """
        started = time.perf_counter()
        family, case = self._family(case), self._on_target(case)
        with torch.random.fork_rng(devices=[]):
            trace = family.trace(case)
        return _estimate(trace, self.target, started, tf32=case.precision == "tf32",
                         channels_last=case.channels_last, ranks=case.parallel is not None)

    def trace(self, case: Case) -> AllocationTrace:
        """Record the allocation trace of a case's iteration on the device, without internal memory.

        Raises:
            CannotEstimate: as above.
        """
        return self._family(case).trace(self._on_target(case))

    def _on_target(self, case: Case) -> Case:
        return replace(case, device=torch.device(self.target.kind))

    def _family(self, case: Case) -> "_Family":
        key = (id(case.workload), case.mode, case.precision, case.data, case.accumulate)
        if key not in self._families:
            self._families[key] = _Family(case.workload, self.target)
        return self._families[key]


def estimate_function(build: Callable[[], Any], name: str, target: Target) -> MemoryEstimate:
    """Estimate the memory of the second call of the function that `build` returns; see `trace_function`.

    Raises:
        CannotEstimate: it cannot run on fake tensors.
    """
    started = time.perf_counter()
    with _kernels_of(target):
        trace = trace_function(build, name, on_cuda=target.kind == "cuda")
    return _estimate(trace, target, started)


def _kernels_of(target: Target) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which a trace is recorded as on the target device."""
    return contextlib.nullcontext() if target.capability is None else cuda_kernels(target.capability)


def _inner(trace: AllocationTrace, target: Target, *, tf32: bool, channels_last: bool, ranks: bool
           ) -> tuple[Range, Workspaces]:
    """Return the internal memory of a trace's operators, and how it is known."""
    if target.kind == "cuda":
        return cuda_inner(trace, target, tf32=tf32, channels_last=channels_last), Workspaces("modelled")
    inner, workspaces = measured_inner(trace, _OPERATORS)
    return (inner.with_more(gloo_copies(trace)) if ranks else inner), workspaces


def _estimate(trace: AllocationTrace, target: Target, started: float, *, tf32: bool = False,
              channels_last: bool = False, ranks: bool = False) -> MemoryEstimate:
    inner, workspaces = _inner(trace, target, tf32=tf32, channels_last=channels_last, ranks=ranks)
    likely = _replay_on(trace, inner.likely, target)
    low, high = (likely if one == inner.likely else _replay_on(trace, one, target) for one in (inner.low, inner.high))
    on_cuda = target.kind == "cuda"
    parts = {origin: sum(num_bytes for (_, of), num_bytes in likely.curve.peak.held.items() if of == origin)
             for origin in MEMORY_ORIGINS}
    # Larger blocks may fragment CUDA's allocator less, so that the totals may even shrink.
    peaks = [played.curve.peak.total_bytes for played in (low, likely, high)]
    least, most = (max(0, peak + sign * max(_MIN_UNCERTAINTY_BYTES, math.ceil(peak * _MIN_UNCERTAINTY)))
                   for sign, peak in ((-1, min(peaks)), (1, max(peaks))))
    scarce = high if inner.scarce is None else _replay_on(trace, inner.scarce, target)
    reserved = max(played.reserved_bytes or 0 for played in (low, likely, scarce))
    needed = (reserved or most) + target.context_high_bytes
    return MemoryEstimate(likely.curve.rows("predicted"), PredictionPass(
        "ok", peak_bytes=likely.curve.peak.total_bytes, low_bytes=least, high_bytes=most,
        tensors_bytes=parts["tensors"], workspaces_bytes=parts["workspaces"], rounding_bytes=parts["rounding"],
        reserved_peak_bytes=likely.reserved_bytes, context_bytes=target.context_bytes if on_cuda else None,
        needed_bytes=needed, device=target.name, device_memory_bytes=target.memory_bytes,
        fits=None if target.memory_bytes is None else needed <= target.memory_bytes,
        workspaces=workspaces, uncertain=sorted(inner.uncertain), duration_s=time.perf_counter() - started))


def _replay_on(trace: AllocationTrace, inner: Inner, target: Target) -> Replayed:
    if target.kind == "cuda":
        return replay(trace, CachingAllocator(), inner.workspaces, inner.sizes, held(trace, target))
    return replay(trace, HostAllocator(), inner.workspaces, inner.sizes)


class _Family:
    """Cases that differ only in input size and batch size."""

    def __init__(self, workload: Workload, target: Target) -> None:
        self._workload, self._target = workload, target  # referenced: the family's key is the workload's id()
        self._program_made: FakeProgram | None = None
        self._shapes: list[tuple[int, ...]] | None = None

    def trace(self, case: Case) -> AllocationTrace:
        """Record the allocation trace of the case's iteration; of rank 0, whose shards are the largest."""
        if case.parallel:
            with fake_process_group(case.num_ranks), _kernels_of(self._target):
                return FakeProgram(case).trace(case)
        with _kernels_of(self._target):
            return self._program(case).trace(case)

    def _program(self, case: Case) -> FakeProgram:
        """Return the program for a case: the previous one, unless the weights' shapes differ."""
        shapes = weight_shapes(case)
        if self._program_made is None or shapes is None or shapes != self._shapes:
            self._program_made, self._shapes = FakeProgram(case), shapes
        return self._program_made
