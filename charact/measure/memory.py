"""The memory pass: one iteration under the profiler's allocation events; what is held when, and what it is for.

Persistent blocks (weights, optimizer state) are known by identity before the iteration; input and gradients by the
addresses of their tensors at the end of the phase that makes them; the rest by how long a block lives.
"""

import contextlib
import resource
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

from charact.measure.event_tree import Allocation, EventTree, read_event_tree
from charact.measure.loop import Loop
from charact.measure.marks import phase_mark
from charact.schema import MEMORY_CATEGORIES

MAX_TIMELINE_MOMENTS = 200

Blocks = dict[int, int]
"""Address -> bytes."""


def memory_pass(loop: Loop) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of the table `memory` for one iteration, and facts about the pass.

    Bytes are those that PyTorch's allocator handed out, on the case's device. Categories: weights (parameters and
    buffers), gradients, optimizer_state, input (the batch), activations (made in the forward pass or loss, and kept
    beyond the operator that made them), temporary (the rest that is given back by the end of the iteration: inside an
    operator, or gradients of activations), unknown (neither known nor given back).

    *Error*: what libraries allocate on their own (oneDNN's scratch, the CUDA context) is not seen. On CUDA the peak
    is checked against the allocator's own statistics (facts `allocator_peak_bytes`).
    """
    device = loop.case.device
    on_cuda = device.type == "cuda"
    watch = _Watch(loop)
    persistent = watch.persistent()
    if on_cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        allocated = torch.cuda.memory_allocated(device)
    else:
        allocated = sum(persistent.values())  # the CPU's allocator keeps no count
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loop.iteration(watch.mark)
    tree = read_event_tree(profiler)
    held = dict.fromkeys(MEMORY_CATEGORIES, 0) | persistent
    held["unknown"] = max(0, allocated - sum(persistent.values()))
    moments = _composition_over_time(tree, watch, held, device.type)
    facts = {
        "peak_bytes": max(sum(moment.categories.values()) for moment in moments),
        "allocator_peak_bytes": torch.cuda.max_memory_allocated(device) if on_cuda else None,
        "reserved_peak_bytes": torch.cuda.max_memory_reserved(device) if on_cuda else None,
        "process_peak_bytes": process_peak_bytes(),
    }
    return _rows(moments), facts


def process_peak_bytes() -> int:
    """Largest resident set of this process since it began, in bytes, as the kernel counts it."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class _Watch:
    """Notes, between phases, which addresses hold the input, the gradients and the optimizer's state."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.input: Blocks = {}
        self.gradients: Blocks = {}
        self.optimizer_state: Blocks = {}

    def persistent(self) -> dict[str, int]:
        """Bytes by category of what is there before the iteration."""
        model = self._loop.model
        self.optimizer_state = self._state()
        return {
            "weights": sum(_blocks([*model.parameters(), *model.buffers()]).values()),
            "optimizer_state": sum(self.optimizer_state.values()),
            "gradients": sum(self._gradients().values()),
        }

    @contextlib.contextmanager
    def mark(self, phase: str) -> Iterator[None]:
        """Phase mark that takes its notes after the phase."""
        with phase_mark(phase):
            yield
        if phase == "data":
            self.input = _blocks(tree_leaves(self._loop.batch))
        elif phase == "backward":
            self.gradients = self._gradients()
        elif phase == "update":
            self.optimizer_state = self._state()

    def _gradients(self) -> Blocks:
        return _blocks(parameter.grad for parameter in self._loop.model.parameters())

    def _state(self) -> Blocks:
        states = [state for optimizer in self._loop.optimizers for state in optimizer.state.values()]
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
    foreign = sum(num_bytes for address, num_bytes in watch.input.items() if address not in seen)
    if foreign and device == "cpu":
        changes.append((data_end_ns, "input", foreign))
    changes += [(start_ns, "unknown", 0) for start_ns, _, _ in tree.phases]
    moments = []
    for time_ns, category, num_bytes in sorted(changes):
        held[category] += num_bytes
        moments.append(_Moment(time_ns, tree.phase_at(time_ns), held.copy()))
    return moments


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

    def outlives(end_of: str) -> bool:
        ends = [end_ns for _, end_ns, name in tree.phases if name == end_of]
        return bool(ends) and block.begin_ns <= ends[-1] and (block.end_ns is None or block.end_ns > ends[-1])

    if block.address in watch.input and phase == "data" and outlives("data"):
        return "input"
    if block.address in watch.gradients and phase == "backward" and outlives("backward"):
        return "gradients"
    if block.address in watch.optimizer_state and phase == "update" and outlives("update"):
        return "optimizer_state"
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
