"""Memory measurement of one case, with or without a limit, and the memory at an out-of-memory error."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import torch

from charact.core.memory_curve import Snapshot
from charact.execution.batches import Batches
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.execution.memory_limit import Limit, give_back_to_system, memory_limit, release_memory, warm_up_process
from charact.execution.out_of_memory import is_out_of_memory, requested_bytes
from charact.execution.precision import float32_products
from charact.measure.passes.memory_pass import MemoryProbe, probe_for, run_under
from charact.measure.passes.resident_memory import reset_resident_peak, resident_bytes, resident_peak_bytes
from charact.record.manifest import OutOfMemory
from charact.record.manifest_passes import MemoryPass
from charact.record.schema import Rows

Made = TypeVar("Made")


class MemoryCase:
    """A case whose memory is measured.

    All iterations use the first batch of the first epoch, as estimates do, since texts differ in length. The first
    iteration creates the optimizer's state, the second measures the composition, the third measures each phase's peak
    with little overhead.
    """

    def __init__(self, case: Case, limit_bytes: int | None) -> None:
        self._case, self._limit_bytes = case, limit_bytes
        self.shortage: OutOfMemory | None = None
        """Facts of an out-of-memory error: requested, free and limit (bytes), phase, and composition (bytes by
        category); unknown values are None."""
        self.description: dict[str, Any] = {}
        """Additions to the case's manifest entry: number of parameters, and facts of the workload."""

    def measure(self) -> tuple[Rows, MemoryPass]:
        """Run the case; return rows of the table `memory`, and facts.

        Facts are those of `MemoryProbe`; phase_peak_bytes, each phase's peak in an iteration without annotations of
        layers and operators; process_before_bytes and process_peak_bytes, the process's resident set before the case
        and its peak (None if the system does not report it).
        """
        case, dataset = self._case, self._case.dataset()
        warm_up_process()
        if self._limit_bytes is not None and case.device.type == "cpu":
            give_back_to_system()
            # Without a limit first, so that oneDNN's kernels and Python's caches do not count.
            with contextlib.suppress(MemoryError, RuntimeError):  # the limited run reports the error
                MemoryCase(case, None).measure()
        release_memory(case.device)
        resettable, before_bytes = reset_resident_peak(), resident_bytes()
        with memory_limit(case.device, self._limit_bytes) as limit, float32_products(case.precision):
            batches = Batches(case, dataset, shuffle=case.training, whole=True).first(case.data.seed)
            loop = self._attempt(limit, lambda: Loop(case, batches, dataset=dataset))
            for _ in range(2):
                probe = probe_for(loop)
                self._attempt(limit, partial(run_under, probe, loop), probe)
            process_peak_bytes = resident_peak_bytes() if resettable else None
            rows, facts = probe.found()
            if case.device.type == "cuda":
                peaks = self._attempt(limit, lambda: allocator_peaks(loop))
            else:
                probe = probe_for(loop, operators=False)
                self._attempt(limit, partial(run_under, probe, loop), probe)
                peaks = {phase: snapshot.total_bytes for phase, snapshot in probe.read()[1].phase_peaks().items()}
        self.description = {"num_parameters": sum(parameter.numel() for parameter in loop.model.parameters()),
                            "facts": loop.workload.facts()}
        facts.update(phase_peak_bytes=peaks, process_before_bytes=before_bytes, process_peak_bytes=process_peak_bytes)
        return rows, facts

    def _attempt(self, limit: Limit, action: Callable[[], Made], probe: MemoryProbe | None = None) -> Made:
        try:
            return action()
        except Exception as error:
            if is_out_of_memory(error):
                self._note(error, limit, probe)
            raise

    def _note(self, error: Exception, limit: Limit, probe: MemoryProbe | None) -> None:
        free_bytes = limit.free_bytes()
        failed = _failed(probe) if probe is not None and probe.has_stopped else None
        if failed is not None and self._case.device.type == "cpu":  # the failed operator has freed its memory
            at_failure, now = failed
            free_bytes -= at_failure.total_bytes - now.total_bytes
            free_bytes = min(free_bytes, limit.limit_bytes - at_failure.total_bytes)  # heap fragmentation
        self.shortage = OutOfMemory(
            requested_bytes=requested_bytes(error), free_bytes=max(0, free_bytes), limit_bytes=limit.limit_bytes,
            phase=None if failed is None else failed[0].place.phase,
            composition=None if failed is None else dict[str, float](failed[0].categories))


def _failed(probe: MemoryProbe) -> tuple[Snapshot, Snapshot]:
    tree, curve = probe.read(failed=True)
    if tree.out_of_memory_ns is not None:
        before = [snapshot for snapshot in curve.snapshots if snapshot.place.moment <= tree.out_of_memory_ns]
        return before[-1], curve.snapshots[-1]
    # A library's own allocation failed: use the peak of the failed phase.
    inside = [snapshot for snapshot in curve.snapshots if snapshot.place.moment >= tree.marks[-1][0]]
    return max(inside, key=attrgetter("total_bytes")), curve.snapshots[-1]


def allocator_peaks(loop: Loop) -> dict[str, int]:
    """Return the peak of each phase of one iteration on CUDA (bytes), from the allocator, without synchronization."""
    device, peaks = loop.case.device, dict[str, int]()

    @contextlib.contextmanager
    def mark(phase: str) -> Iterator[None]:
        torch.cuda.reset_peak_memory_stats(device)
        yield
        peaks[phase] = max(peaks.get(phase, 0), torch.cuda.max_memory_allocated(device))

    loop.iteration(mark)
    return peaks
