"""Memory estimates of cases on a target device, which need not be present."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from charact.execution.case import Case
from charact.execution.precision import PRECISIONS
from charact.measure.memory_estimate.allocation_trace import AllocationTrace
from charact.measure.memory_estimate.cuda_kernels import cuda_kernels
from charact.measure.memory_estimate.cuda_workspaces import cuda_inner, held
from charact.measure.memory_estimate.fake_program import CannotEstimate, FakeProgram, weight_shapes
from charact.measure.memory_estimate.function_trace import trace_function
from charact.measure.memory_estimate.inner_memory import Inner, measured_inner
from charact.measure.memory_estimate.operator_memory import OperatorMemory
from charact.measure.memory_estimate.ranks import fake_process_group, gloo_copies
from charact.measure.memory_estimate.replay import CachingAllocator, HostAllocator, Replayed, replay
from charact.measure.memory_estimate.target_devices import Target
from charact.measure.ranks.processes import threads_of_rank, with_threads
from charact.record.manifest_passes import PredictionPass, Workspaces
from charact.record.schema import GENERATING_MODES, MEMORY_ORIGINS
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
    peak_bytes: int
    """Peak of memory allocated through PyTorch's allocator."""
    low_bytes: int
    high_bytes: int
    """Bounds of the peak."""
    needed_bytes: int
    """Memory that the device must have: upper bounds of reserved memory and CUDA context."""


class Estimator:
    """Estimates the memory of cases; those that differ only in input size and batch size share a program.

    A CPU target means this machine's CPU.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._programs: dict[Any, tuple[Workload, list[tuple[int, ...]] | None, FakeProgram]] = {}
        """Workload, shapes of the weights, and program; a key has the workload's id, so that it must not be freed."""

    def estimate(self, case: Case) -> MemoryEstimate:
        """Estimate the memory of a case.

        Raises:
            CannotEstimate: its model cannot run on fake tensors.
        """
        started = time.perf_counter()
        # On a CPU operators need memory for each thread, and the ranks share the threads of this process.
        is_cpu_rank = case.parallel is not None and self.target.kind == "cpu"
        with with_threads(threads_of_rank(case.num_ranks) if is_cpu_rank else None):
            with torch.random.fork_rng(devices=[]):
                trace = self.trace(case)
            return _estimate(trace, self.target, started, tf32=case.precision == "tf32",
                             channels_last=case.channels_last, ranks=case.parallel is not None)

    def trace(self, case: Case) -> AllocationTrace:
        """Record the allocation trace of a case's iteration on the device, without internal memory.

        Of several ranks it is that of rank 0, whose shards are the largest.

        Raises:
            CannotEstimate: as above.
        """
        if PRECISIONS[case.precision].quantized:
            raise CannotEstimate(f"the memory of {case.workload.name} in {case.precision} cannot be estimated: run it "
                                 "with --measure")
        case = replace(case, device=torch.device(self.target.kind))
        if case.parallel:
            with fake_process_group(case.num_ranks), _kernels_of(self.target, case.attention):
                return FakeProgram(case).trace(case)
        key = (id(case.workload), case.mode, case.precision, case.attention, case.data, case.accumulate, case.cache,
               case.lora_rank,
               (case.input_size, case.output_size, case.batch_size) if case.mode in GENERATING_MODES else ())
        with _kernels_of(self.target, case.attention):
            shapes = weight_shapes(case)
            _, known_shapes, program = self._programs.get(key, (None, None, None))
            if program is None or shapes is None or shapes != known_shapes:
                program = FakeProgram(case)
                self._programs[key] = case.workload, shapes, program
            return program.trace(case)


def estimate_function(build: Callable[[], Any], name: str, target: Target) -> MemoryEstimate:
    """Estimate the memory of the second call of the function that `build` returns; see `trace_function`.

    Raises:
        CannotEstimate: it cannot run on fake tensors.
    """
    started = time.perf_counter()
    with _kernels_of(target):
        trace = trace_function(build, name, on_cuda=target.kind == "cuda")
    return _estimate(trace, target, started)


def _kernels_of(target: Target, attention: str | None = None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if target.capability is None else cuda_kernels(target.capability, attention)


def _estimate(trace: AllocationTrace, target: Target, started: float, *, tf32: bool = False,
              channels_last: bool = False, ranks: bool = False) -> MemoryEstimate:
    on_cuda = target.kind == "cuda"
    if on_cuda:
        inner = cuda_inner(trace, target, tf32=tf32, channels_last=channels_last)
        known_by = Workspaces("modelled")
    else:
        inner, known_by = measured_inner(trace, _OPERATORS)
        inner = inner.with_more(gloo_copies(trace)) if ranks else inner

    def replayed(inner: Inner) -> Replayed:
        allocator, library_blocks = (CachingAllocator(), held(trace, target)) if on_cuda else (HostAllocator(), [])
        return replay(trace, allocator, inner.workspaces, inner.sizes, library_blocks)

    likely = replayed(inner.likely)
    low, high = (likely if bound == inner.likely else replayed(bound) for bound in (inner.low, inner.high))
    peak = likely.curve.peak
    tensors, workspaces, rounding = (sum(num_bytes for (_, of), num_bytes in peak.held.items() if of == origin)
                                     for origin in MEMORY_ORIGINS)
    # Larger blocks may fragment CUDA's allocator less, so that the totals may even shrink.
    peaks = [result.curve.peak.total_bytes for result in (low, likely, high)]
    least, most = (max(0, total + sign * max(_MIN_UNCERTAINTY_BYTES, math.ceil(total * _MIN_UNCERTAINTY)))
                   for sign, total in ((-1, min(peaks)), (1, max(peaks))))
    scarce = high if inner.scarce is None else replayed(inner.scarce)
    reserved = max(result.reserved_bytes or 0 for result in (low, likely, scarce))
    needed = (reserved or most) + target.context_high_bytes
    return MemoryEstimate(likely.curve.rows("predicted"), PredictionPass(
        "ok", peak_bytes=peak.total_bytes, low_bytes=least, high_bytes=most,
        tensors_bytes=tensors, workspaces_bytes=workspaces, rounding_bytes=rounding,
        reserved_peak_bytes=likely.reserved_bytes, context_bytes=target.context_bytes if on_cuda else None,
        context_high_bytes=target.context_high_bytes if on_cuda else None, needed_bytes=needed, device=target.name,
        device_memory_bytes=target.memory_bytes,
        fits=None if target.memory_bytes is None else needed <= target.memory_bytes,
        workspaces=known_by, uncertain=sorted(inner.uncertain), duration_s=time.perf_counter() - started),
        peak.total_bytes, least, most, needed)
