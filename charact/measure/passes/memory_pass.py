"""The memory pass: one iteration under the profiler's allocation events; what is held when, and what it is for.

Persistent blocks (weights, optimizer state) are known by identity before the iteration; input and gradients by the
addresses of their tensors at the end of the phase that makes them; the rest by how long a block lives.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import _disable_profiler, _enable_profiler
from torch._C._profiler import RecordScope
from torch.autograd.profiler import profile

from charact.measure.passes.block_owners import Holders
from charact.measure.passes.event_tree import EventTree, read_results
from charact.measure.passes.marks import layer_marks, phase_mark
from charact.measure.passes.memory_timeline import Moment, memory_rows, moments_of, phase_peaks
from charact.measure.passes.resident_memory import resident_peak_bytes

if TYPE_CHECKING:
    from charact.execution.loop import Loop


class MemoryProbe:
    """Watches the memory of one iteration, between `begin` and `stop`.

    Bytes are those that PyTorch's allocator handed out, on one device. Categories: weights (parameters and buffers),
    gradients, optimizer_state, input (the batch), activations (made in the forward pass or loss, and kept beyond the
    operator that made them; what a workload carries from one iteration to the next, such as a hidden state), temporary
    (the rest that is given back by the end of the iteration: inside an operator, or gradients of activations), unknown
    (neither known nor given back).

    *Error*: what libraries allocate on their own (oneDNN's scratch, the CUDA context) is not seen, nor on a CPU what a
    program of its own still holds of the iteration before. On CUDA the peak is checked against the allocator's own
    statistics (facts `allocator_peak_bytes`).

    Args:
        device: whose memory.
        models: whose weights and gradients are told.
        optimizers: whose state is told.
        carriers: objects whose attributes hold tensors from one iteration to the next.
        operators: whether operators are recorded; without them an iteration is hardly slower, but what is made and
            given back inside an operator of the forward pass counts as activations.
    """

    def __init__(self, device: torch.device, models: Sequence[torch.nn.Module],
                 optimizers: Sequence[torch.optim.Optimizer], carriers: Sequence[Any] = (), *,
                 operators: bool = True) -> None:
        self._device, self._on_cuda = device, device.type == "cuda"
        self._holders = Holders(device, models, optimizers, carriers)
        self.operators = operators
        self._results: Any = None

    def begin(self) -> None:
        """The iteration starts now."""
        self._held = self._holders.begin()
        if self._on_cuda:
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            # The CPU's allocator keeps no count.
            self._held["unknown"] = max(0, torch.cuda.memory_allocated(self._device) - sum(self._held.values()))
        profiler = profile(profile_memory=True)
        profiler._prepare_trace()  # type: ignore[no-untyped-call]
        config = profiler.config()  # type: ignore[no-untyped-call]
        # Its own start would record the operators in any case.
        scopes = set() if self.operators else {RecordScope.USER_SCOPE}
        _enable_profiler(config, profiler.kineto_activities, scopes)  # type: ignore[call-arg]

    def input(self, batch: Any) -> None:
        """A batch was fetched or moved to the device: its tensors are input."""
        self._holders.fetched(batch)

    def phase_ended(self) -> None:
        """A phase's mark has ended: the time to note what holds gradients and state."""
        self._holders.note()

    def stop(self) -> None:
        """The iteration has ended, or failed."""
        self._holders.end()
        self._results = _disable_profiler()

    @property
    def has_stopped(self) -> bool:
        """Whether there is something to read: memory may be too short for the profiler itself."""
        return self._results is not None

    def read(self, *, failed: bool = False) -> tuple[EventTree, list[Moment]]:
        """Events of the iteration that was stopped, and what was held from moment to moment.

        Args:
            failed: whether it did not come to its end; what it still holds would have been given back.
        """
        tree = read_results(self._results)
        return tree, moments_of(tree, self._holders, self._held, failed=failed)

    def found(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Rows of the table `memory` of the iteration that was stopped, and facts."""
        _, moments = self.read()
        return memory_rows(moments), {
            "peak_bytes": max(moment.total_bytes for moment in phase_peaks(moments).values()),
            "allocator_peak_bytes": torch.cuda.max_memory_allocated(self._device) if self._on_cuda else None,
            "reserved_peak_bytes": torch.cuda.max_memory_reserved(self._device) if self._on_cuda else None,
            "process_peak_bytes": resident_peak_bytes(),
        }


def probe_for(loop: "Loop", *, operators: bool = True) -> MemoryProbe:
    """The probe of a loop's iterations."""
    return MemoryProbe(loop.case.device, [loop.model], loop.optimizers, [loop.workload], operators=operators)


def run_under(probe: MemoryProbe, loop: "Loop") -> None:
    """Run an iteration between a probe's beginning and its stop."""
    # A hook inside a compiled model would break its graph.
    with layer_marks(loop.model) if probe.operators and not loop.case.compiled else contextlib.nullcontext():
        probe.begin()
        try:
            marked_iteration(probe, loop)
        finally:
            probe.stop()


def marked_iteration(probe: MemoryProbe, loop: "Loop") -> None:
    """Run an iteration and tell a probe of its phases."""
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
    """Rows of the table `memory` for one iteration, and facts about the pass; see `MemoryProbe`."""
    probe = probe_for(loop)
    run_under(probe, loop)
    return probe.found()
