"""Memory pass: one iteration under the profiler's allocation events; bytes in use over time, by category.

Persistent blocks (weights, optimizer state) are known by identity before the iteration. Input and gradients are found
by the addresses of their tensors after the phase that creates them; other blocks are classified by lifetime.
"""

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import _disable_profiler, _enable_profiler
from torch._C._profiler import RecordScope
from torch.autograd.profiler import profile

from charact.measure.passes.block_owners import BlockOwners
from charact.measure.passes.event_tree import EventTree, read_results
from charact.measure.passes.marks import layer_marks, phase_mark
from charact.measure.passes.memory_timeline import MemorySnapshot, memory_rows, phase_peaks, snapshots_of
from charact.measure.passes.resident_memory import resident_peak_bytes

if TYPE_CHECKING:
    from charact.execution.loop import Loop


class MemoryProbe:
    """Records the memory of one iteration, between `begin` and `stop`.

    Bytes are those that PyTorch's allocator allocated on one device. Categories:

    - weights: parameters and buffers.
    - gradients, optimizer_state, input (the batch).
    - activations: allocated in the forward or loss, and kept longer than the operator that allocated them; also tensors
      that a workload keeps between iterations, such as a hidden state.
    - temporary: other blocks freed by the end of the iteration, inside an operator or gradients of activations.
    - workspaces: what cuBLAS keeps between iterations (CUDA).
    - unknown: all other blocks.

    *Error*: memory that libraries allocate themselves (oneDNN's scratch memory, the CUDA context) is not included. On a
    CPU, neither are blocks of the previous iteration that only the autograd graph still holds. On CUDA, compare the
    peak with the allocator's statistics (fact `allocator_peak_bytes`).

    Args:
        device: whose memory is recorded.
        models: owners of weights and gradients.
        optimizers: owners of optimizer state.
        carriers: objects whose attributes hold tensors between iterations.
        others: whether to find the program's other tensors, see `BlockOwners`.
        operators: whether operators are recorded. Without them the overhead is small, but blocks that the forward
            allocates and frees inside an operator count as activations.
    """

    def __init__(self, device: torch.device, models: Sequence[torch.nn.Module],
                 optimizers: Sequence[torch.optim.Optimizer], carriers: Sequence[Any] = (), *,
                 others: bool = False, operators: bool = True) -> None:
        self._device, self._on_cuda = device, device.type == "cuda"
        self._owners = BlockOwners(device, models, optimizers, carriers, others=others)
        self.operators = operators
        self._results: Any = None

    def begin(self) -> None:
        """Start to record an iteration."""
        self._held = self._owners.begin()
        if self._on_cuda:
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            # The CPU's allocator has no statistics.
            self._held["unknown"] = max(0, torch.cuda.memory_allocated(self._device) - sum(self._held.values()))
        start_memory_events(operators=self.operators)

    def input(self, batch: Any) -> None:
        """Record a fetched or moved batch as input."""
        self._owners.fetched(batch)

    def phase_ended(self) -> None:
        """Record gradients and optimizer state at the end of a phase."""
        self._owners.note()

    def stop(self) -> None:
        """End the recording after the iteration has ended or failed."""
        self._owners.end()
        self._results = stop_memory_events()

    @property
    def has_stopped(self) -> bool:
        """Whether there are results: the profiler itself may run out of memory."""
        return self._results is not None

    def read(self, *, failed: bool = False) -> tuple[EventTree, list[MemorySnapshot]]:
        """Return the events of the iteration, and snapshots of the memory in use.

        Args:
            failed: whether the iteration failed, so that temporary blocks were not freed.
        """
        tree = read_results(self._results)
        if self._on_cuda:
            workspaces = min(self._held["unknown"], released_workspaces(self._device))
            self._held["workspaces"] += workspaces
            self._held["unknown"] -= workspaces
        return tree, snapshots_of(tree, self._owners, self._held, failed=failed)

    def found(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return rows of the table `memory` of the iteration, and facts."""
        _, snapshots = self.read()
        return memory_rows(snapshots), {
            "peak_bytes": max(snapshot.total_bytes for snapshot in phase_peaks(snapshots).values()),
            "allocator_peak_bytes": torch.cuda.max_memory_allocated(self._device) if self._on_cuda else None,
            "reserved_peak_bytes": torch.cuda.max_memory_reserved(self._device) if self._on_cuda else None,
            "process_peak_bytes": resident_peak_bytes(),
        }


def start_memory_events(*, operators: bool) -> None:
    """Start PyTorch's profiler with the allocator's events, with annotations, and with or without operators."""
    profiler = profile(profile_memory=True)
    profiler._prepare_trace()  # type: ignore[no-untyped-call]
    config = profiler.config()  # type: ignore[no-untyped-call]
    # The profiler's own start would always record operators.
    scopes = set() if operators else {RecordScope.USER_SCOPE}
    _enable_profiler(config, profiler.kineto_activities, scopes)  # type: ignore[call-arg]


def stop_memory_events() -> Any:
    """Stop the profiler; return Kineto's results."""
    return _disable_profiler()


def released_workspaces(device: torch.device) -> int:
    """Release cuBLAS's workspaces, and return their bytes on a device; cuBLAS allocates them again when it needs them.

    None are released, and the result is 0, if the program has a CUDA graph, whose kernels may use them.
    """
    release = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if release is None or any(issubclass(type(obj), torch.cuda.CUDAGraph) for obj in gc.get_objects()):
        return 0
    torch.cuda.synchronize(device)
    before_bytes = torch.cuda.memory_allocated(device)
    release()
    return before_bytes - torch.cuda.memory_allocated(device)


def probe_for(loop: "Loop", *, operators: bool = True) -> MemoryProbe:
    """Return a probe of a loop's iterations."""
    return MemoryProbe(loop.case.device, [loop.model], loop.optimizers, [loop.workload], operators=operators)


def run_under(probe: MemoryProbe, loop: "Loop") -> None:
    """Run an iteration and record it with a probe."""
    # A hook inside a compiled model would break its graph.
    with layer_marks(loop.model) if probe.operators and not loop.case.compiled else contextlib.nullcontext():
        probe.begin()
        try:
            marked_iteration(probe, loop)
        finally:
            probe.stop()


def marked_iteration(probe: MemoryProbe, loop: "Loop") -> None:
    """Run an iteration with annotations of its phases, and report their ends to the probe."""
    @contextlib.contextmanager
    def mark(phase: str) -> Iterator[None]:
        try:
            with phase_mark(phase):
                yield
            if phase == "data":
                probe.input(loop.batch)
        finally:
            probe.phase_ended()

    loop.iteration(mark)


def memory_pass(loop: "Loop") -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return rows of the table `memory` for one iteration, and facts about the pass; see `MemoryProbe`."""
    probe = probe_for(loop)
    run_under(probe, loop)
    return probe.found()
