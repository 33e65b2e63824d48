"""The memory pass: one iteration under the profiler's allocation events; what is held when, and what it is for.

Persistent blocks (weights, optimizer state) are known by identity before the iteration; input and gradients by the
addresses of their tensors at the end of the phase that makes them; the rest by how long a block lives.
"""

import contextlib
import resource
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

from charact.measure.event_tree import Allocation, EventTree, read_event_tree
from charact.measure.marks import phase_mark
from charact.schema import MEMORY_CATEGORIES

if TYPE_CHECKING:
    from charact.measure.loop import Loop

MAX_TIMELINE_MOMENTS = 200

Blocks = dict[int, int]
"""Address -> bytes."""


class MemoryProbe:
    """Watches the memory of one iteration, between `begin` and `end`.

    Bytes are those that PyTorch's allocator handed out, on one device. Categories: weights (parameters and buffers),
    gradients, optimizer_state, input (the batch), activations (made in the forward pass or loss, and kept beyond the
    operator that made them), temporary (the rest that is given back by the end of the iteration: inside an operator, or
    gradients of activations), unknown (neither known nor given back).

    *Error*: what libraries allocate on their own (oneDNN's scratch, the CUDA context) is not seen, nor on a CPU what a
    program still holds of the iteration before. On CUDA the peak is checked against the allocator's own statistics
    (facts `allocator_peak_bytes`).

    Args:
        device: whose memory.
        models: whose weights and gradients are told.
        optimizers: whose state is told.
    """

    def __init__(self, device: torch.device, models: Sequence[torch.nn.Module],
                 optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._device, self._on_cuda = device, device.type == "cuda"
        self._watch = _Watch(models, optimizers)

    def begin(self) -> None:
        """The iteration starts now."""
        device = self._device
        self._persistent = self._watch.persistent()
        if self._on_cuda:
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            self._allocated = torch.cuda.memory_allocated(device)
        else:
            self._allocated = sum(self._persistent.values())  # the CPU's allocator keeps no count
        self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profiler.start()

    def input(self, batch: Any) -> None:
        """A batch was fetched or moved to the device: its tensors are input."""
        self._watch.batch = _blocks(tree_leaves(batch))
        self._watch.input |= self._watch.batch

    def phase_ended(self) -> None:
        """A phase's mark has ended: the time to note what holds gradients and state."""
        self._watch.note()

    def drop(self) -> None:
        """End the iteration as if it had not been."""
        self._profiler.stop()

    def end(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The iteration has ended; returns rows of the table `memory`, and facts."""
        self._profiler.stop()
        persistent = self._persistent
        held = dict.fromkeys(MEMORY_CATEGORIES, 0) | persistent
        held["unknown"] = max(0, self._allocated - sum(persistent.values()))
        moments = _composition_over_time(read_event_tree(self._profiler), self._watch, held, self._device.type)
        return _rows(moments), {
            "peak_bytes": max(sum(moment.categories.values()) for moment in moments),
            "allocator_peak_bytes": torch.cuda.max_memory_allocated(self._device) if self._on_cuda else None,
            "reserved_peak_bytes": torch.cuda.max_memory_reserved(self._device) if self._on_cuda else None,
            "process_peak_bytes": process_peak_bytes(),
        }


def memory_pass(loop: "Loop") -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of the table `memory` for one iteration, and facts about the pass; see `MemoryProbe`."""
    probe = MemoryProbe(loop.case.device, [loop.model], loop.optimizers)

    @contextlib.contextmanager
    def mark(phase: str) -> Iterator[None]:
        with phase_mark(phase):
            yield
        if phase == "data":
            probe.input(loop.batch)
        probe.phase_ended()

    probe.begin()
    try:
        loop.iteration(mark)
    except BaseException:
        probe.drop()
        raise
    return probe.end()


def process_peak_bytes() -> int:
    """Largest resident set of this process since it began, in bytes, as the kernel counts it."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class _Watch:
    """Notes, between phases, which addresses hold the input, the gradients and the optimizer's state."""

    def __init__(self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._models, self._optimizers = models, optimizers
        self.batch: Blocks = {}
        self.input: Blocks = {}
        self.gradients: Blocks = {}
        self.optimizer_state: Blocks = {}
        self.released: list[int] = []
        """Bytes of gradients from before the iteration that each phase gave back, by the number of its mark."""
        self._old_gradients: Blocks = {}

    def persistent(self) -> dict[str, int]:
        """Bytes by category of what is there before the iteration."""
        weights = [tensor for model in self._models for tensor in (*model.parameters(), *model.buffers())]
        self.optimizer_state, self._old_gradients = self._state(), self._gradients()
        return {
            "weights": sum(_blocks(weights).values()),
            "optimizer_state": sum(self.optimizer_state.values()),
            "gradients": sum(self._old_gradients.values()),
        }

    def note(self) -> None:
        """A phase has ended."""
        present = self._gradients()
        gone = self._old_gradients.keys() - present.keys()
        self.released.append(sum(self._old_gradients.pop(address) for address in gone))
        self.gradients |= {address: size for address, size in present.items() if address not in self._old_gradients}
        self.optimizer_state |= self._state()

    def _gradients(self) -> Blocks:
        return _blocks(parameter.grad for model in self._models for parameter in model.parameters())

    def _state(self) -> Blocks:
        states = [state for optimizer in self._optimizers for state in optimizer.state.values()]
        return _blocks(tree_leaves(states))


@dataclass
class _Moment:
    """Bytes held by category, from an allocation or phase boundary on."""

    time_ns: int
    phase: str | None
    categories: dict[str, int]


@dataclass
class _Block:
    """One allocation of the iteration, from when to when it was held."""

    address: int
    num_bytes: int
    begin_ns: int
    operator_end_ns: int
    end_ns: int | None = None


def _composition_over_time(tree: EventTree, watch: _Watch, held: dict[str, int], device: str) -> list[_Moment]:
    """Composition after every change, and at every phase's start."""
    changes: list[tuple[int, str, int]] = []
    blocks = _pair(allocation for allocation in tree.allocations if allocation.device.startswith(device))
    for block in blocks:
        category = _category(block, tree, watch)
        changes.append((block.begin_ns, category, block.num_bytes))
        if block.end_ns is not None:
            changes.append((block.end_ns, category, -block.num_bytes))
    seen = {block.address for block in blocks}
    data_end_ns = next((end_ns for _, end_ns, phase in tree.phases if phase == "data"), 0)
    # A worker's batch arrives in shared memory, which this process's allocator does not report.
    foreign = sum(num_bytes for address, num_bytes in watch.batch.items() if address not in seen)
    if foreign and device == "cpu":
        changes.append((data_end_ns, "input", foreign))
    # Nor does it report that a block of before is given back.
    changes += [(end_ns, "gradients", -num_bytes)
                for (_, end_ns, _), num_bytes in zip(tree.marks, watch.released, strict=False)]
    changes += [(start_ns, "unknown", 0) for start_ns, _, _ in tree.phases]
    moments: dict[int, _Moment] = {}
    for time_ns, category, num_bytes in sorted(changes):
        held[category] += num_bytes
        moments[time_ns] = _Moment(time_ns, tree.phase_at(time_ns), held.copy())
    return list(moments.values())


def _pair(allocations: Iterable[Allocation]) -> list[_Block]:
    """Join each block's allocation with its release; releases of older blocks are left out."""
    live: dict[int, _Block] = {}
    blocks = []
    for event in allocations:
        if event.num_bytes > 0:
            block = _Block(event.address, event.num_bytes, event.time_ns, event.operator_end_ns)
            live[event.address] = block
            blocks.append(block)
        elif event.address in live:
            live.pop(event.address).end_ns = event.time_ns
    return blocks


def _category(block: _Block, tree: EventTree, watch: _Watch) -> str:
    """Category of a block that the iteration allocated."""
    phase = tree.phase_at(block.begin_ns)
    phase_end_ns = next((end_ns for start_ns, end_ns, _ in tree.phases if start_ns <= block.begin_ns < end_ns), 0)
    if block.end_ns is None or block.end_ns > phase_end_ns:
        for address_of, category, made_in in ((watch.input, "input", "data"),
                                              (watch.gradients, "gradients", "backward"),
                                              (watch.optimizer_state, "optimizer_state", "update")):
            if block.address in address_of and phase == made_in:
                return category
    if phase in ("forward", "loss") and (block.end_ns is None or block.end_ns > block.operator_end_ns):
        return "activations"
    return "unknown" if block.end_ns is None else "temporary"


def _rows(moments: list[_Moment]) -> list[dict[str, Any]]:
    """Composition at the iteration's peak, at each phase's, and over time."""
    peaks: dict[str, _Moment] = {}
    by_phase: dict[str, list[_Moment]] = defaultdict(list)
    for moment in moments:
        if moment.phase is not None:
            by_phase[moment.phase].append(moment)
    for phase, inside in by_phase.items():
        peaks[phase] = max(inside, key=lambda moment: sum(moment.categories.values()))
    overall = max(peaks, key=lambda phase: sum(peaks[phase].categories.values()))
    # Thinned out evenly, but for the peaks, which must not be lost.
    stride = -(-len(moments) // MAX_TIMELINE_MOMENTS)
    kept = [moment for i, moment in enumerate(moments) if i % stride == 0 or moment in peaks.values()]
    shown = [("peak", peaks[overall], None), *(("phase_peak", moment, None) for moment in peaks.values()),
             *(("timeline", moment, (moment.time_ns - moments[0].time_ns) / 1e9) for moment in kept)]
    return [
        {"kind": kind, "method": "measured", "phase": moment.phase, "time_s": time_s, "category": category,
         "bytes": float(num_bytes)}
        for kind, moment, time_s in shown for category, num_bytes in moment.categories.items()
    ]


def _blocks(tensors: Iterable[Any]) -> Blocks:
    """Address and bytes of each storage once."""
    storages = [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}
