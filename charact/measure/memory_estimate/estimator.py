"""Predictions of memory: for one case after another, on a device that need not be there."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import psutil
import torch

from charact.execution.case import Case
from charact.execution.case_outcome import one_line
from charact.execution.out_of_memory import host_memory_guard
from charact.measure.memory_estimate.allocation_trace import Tape
from charact.measure.memory_estimate.caching_allocator import CachingAllocator
from charact.measure.memory_estimate.calibration import Calibration, Inner, Range
from charact.measure.memory_estimate.cuda_kernels import cuda_kernels
from charact.measure.memory_estimate.cuda_workspaces import cuda_inner, held
from charact.measure.memory_estimate.fake_program import FakeProgram, weight_shapes
from charact.measure.memory_estimate.function_trace import function_tape
from charact.measure.memory_estimate.replay import HostAllocator, Replayed, replay
from charact.measure.memory_estimate.target_devices import Target
from charact.measure.memory_estimate.uncalibrated import uncalibrated
from charact.record.schema import MEMORY_ORIGINS
from charact.workload.base import Workload

_SMALL = {"image": 64, "sequence": 16, "other": 16}
"""Input size to calibrate at, by kind of input, where the case is not smaller still."""
_BATCHES = (2, 3)
_FREE_SHARE = 0.5
"""Of the memory that is free, what a calibration may take."""
_LEAST_DOUBT = 0.002
"""What is stated about every peak, up and down as a share: some numbers are made past the dispatcher, such as the
states of random generators that checkpointing keeps."""
_MODELLED: dict[str, Any] = {"method": "modelled", "points": [], "reason": None}


@dataclass(frozen=True)
class Prediction:
    """What an iteration of a case will hold."""

    rows: list[dict[str, Any]]
    """Of the table `memory`."""
    facts: dict[str, Any]
    """Of the pass `prediction`."""

    @property
    def peak_bytes(self) -> int:
        """The most that is held through PyTorch's allocator at a time."""
        return int(self.facts["peak_bytes"])

    @property
    def low_bytes(self) -> int:
        """The least that the peak can be, as stated."""
        return int(self.facts["low_bytes"])

    @property
    def high_bytes(self) -> int:
        """The most that the peak can be, as stated."""
        return int(self.facts["high_bytes"])

    @property
    def needed_bytes(self) -> int:
        """What the device must have: at the high end, with what its allocator keeps and the CUDA context takes."""
        return int(self.facts["needed_bytes"])


class Predictor:
    """Predicts cases; what cases share (programs, calibrations) is made once.

    Args:
        target: the device. For a CPU that is this machine's.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._families: dict[Any, _Family] = {}

    def predict(self, case: Case) -> Prediction:
        """Predict a case.

        Raises:
            CannotPredict: its model does on fake tensors what only real ones can.
        """
        started = time.perf_counter()
        family, case = self._family(case), self._on_target(case)
        with torch.random.fork_rng(devices=[]):  # small runs are seeded and draw numbers
            tape = family.tape(case)
            return _prediction(tape, *family.inner(tape, case), self.target, started)

    def tape(self, case: Case) -> Tape:
        """Tape of a case's iteration on the device: its tensors alone.

        Raises:
            CannotPredict: as above.
        """
        return self._family(case).tape(self._on_target(case))

    def _on_target(self, case: Case) -> Case:
        return replace(case, device=torch.device(self.target.kind))

    def _family(self, case: Case) -> "_Family":
        key = (id(case.workload), case.mode, case.precision, case.data, case.accumulate)
        if key not in self._families:
            self._families[key] = _Family(case.workload, self.target)
        return self._families[key]


def predict_function(build: Callable[[], Any], name: str, target: Target) -> Prediction:
    """Predict the second call of the function that `build` returns; see `function_tape`.

    Raises:
        CannotPredict: it does on fake tensors what only real ones can.
        UserError: `build` returns nothing that can be called.
    """
    started = time.perf_counter()
    with _kernels_of(target):
        tape = function_tape(build, name)
    if target.kind == "cuda":
        return _prediction(tape, cuda_inner(tape, target), _MODELLED, target, started)
    facts = _MODELLED | {"reason": "a function has no smaller sizes to run"}
    return _prediction(tape, uncalibrated(tape), facts, target, started)


def _kernels_of(target: Target) -> contextlib.AbstractContextManager[Any]:
    """Where a tape is to be the device's."""
    return contextlib.nullcontext() if target.capability is None else cuda_kernels(target.capability)


def _prediction(tape: Tape, inner: Range, calibration: dict[str, Any], target: Target, started: float) -> Prediction:
    low, likely, high = (_replayed(tape, one, target) for one in (inner.low, inner.likely, inner.high))
    on_cuda = target.kind == "cuda"
    parts = {origin: sum(num_bytes for (_, of), num_bytes in likely.peak.held.items() if of == origin)
             for origin in MEMORY_ORIGINS}
    # Larger blocks may leave CUDA's allocator with fewer holes: what it hands out and reserves may shrink with them.
    peaks = [played.peak.total_bytes for played in (low, likely, high)]
    least, most = math.floor(min(peaks) * (1 - _LEAST_DOUBT)), math.ceil(max(peaks) * (1 + _LEAST_DOUBT))
    reserved = max((played.reserved_bytes or 0 for played in (low, likely, high)), default=0)
    needed = (reserved or most) + target.context_bytes
    return Prediction(likely.rows(), {
        "peak_bytes": likely.peak.total_bytes, "low_bytes": least, "high_bytes": most,
        **{f"{origin}_bytes": num_bytes for origin, num_bytes in parts.items()},
        "reserved_peak_bytes": likely.reserved_bytes, "context_bytes": target.context_bytes if on_cuda else None,
        "needed_bytes": needed, "device": target.name, "device_memory_bytes": target.memory_bytes,
        "fits": None if target.memory_bytes is None else needed <= target.memory_bytes,
        "calibration": calibration, "uncertain": sorted(inner.doubted), "duration_s": time.perf_counter() - started,
    })


def _replayed(tape: Tape, inner: Inner, target: Target) -> Replayed:
    if target.kind == "cuda":
        return replay(tape, CachingAllocator(), inner.workspaces, inner.sizes, held(tape, target))
    return replay(tape, HostAllocator(), inner.workspaces, inner.sizes)


class _Family:
    """Cases that differ in input and batch size only."""

    def __init__(self, workload: Workload, target: Target) -> None:
        self._workload, self._target = workload, target  # held, since families are known by its identity
        self._program_made: FakeProgram | None = None
        self._shapes: list[tuple[int, ...]] | None = None
        self._calibrations: dict[bool, tuple[Calibration | None, dict[str, Any]]] = {}
        """By whether the batch is one sample: such is computed by other libraries."""

    def tape(self, case: Case) -> Tape:
        """Tape of the case's iteration."""
        with _kernels_of(self._target):
            return self._program(case).tape(case)

    def inner(self, tape: Tape, case: Case) -> tuple[Range, dict[str, Any]]:
        """What the operators of the tape need inside, and how that is known."""
        if self._target.kind == "cuda":
            return cuda_inner(tape, self._target, tf32=case.precision == "tf32"), _MODELLED
        alone = case.batch_size == 1
        if alone not in self._calibrations:
            self._calibrations[alone] = self._calibrate(case)
        calibration, facts = self._calibrations[alone]
        return (uncalibrated(tape) if calibration is None else calibration.inner(tape, case)), facts

    def _program(self, case: Case) -> FakeProgram:
        """The program that the case can be fed to: that of the case before, unless its weights are others."""
        shapes = weight_shapes(case)
        if self._program_made is None or shapes is None or shapes != self._shapes:
            self._program_made, self._shapes = FakeProgram(case), shapes
        return self._program_made

    def _calibrate(self, case: Case) -> tuple[Calibration | None, dict[str, Any]]:
        """Small real runs, of sizes that the model takes and the memory allows."""
        reason = None
        for points in _points(case):
            try:
                largest = self.tape(max(points, key=lambda point: (point.input_size, point.batch_size)))
                need = replay(largest, HostAllocator(), [0] * len(largest.ops)).peak.total_bytes
                if need > _FREE_SHARE * psutil.virtual_memory().available:
                    reason = f"{need} bytes would be needed for it"
                    continue
                with host_memory_guard():
                    calibration = Calibration(points)
            except Exception as error:  # a model may take no other size than the case's
                reason, self._program_made = one_line(error), None  # which stopped in the middle
                continue
            sizes = [[point.input_size, point.batch_size] for point in points]
            return calibration, {"method": "calibrated", "points": sizes, "reason": None}
        return None, _MODELLED | {"reason": reason}


def _points(case: Case) -> list[list[Case]]:
    """Sets of cases to calibrate at, the best first: a model may take no other size than the case's."""
    workload = case.workload
    small = max(workload.smallest_input_size, min(_SMALL[workload.input_kind], case.input_size))
    batches = (*_BATCHES, 1) if case.batch_size == 1 else _BATCHES
    return [[replace(case, input_size=size, batch_size=batch) for batch in batches for size in sizes]
            for sizes in ((small, small * 3 // 2), (case.input_size,))]
