"""Replay of an allocation trace through a device's allocator: memory over time by category and origin."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from charact.measure.memory_estimate.allocation_trace import AllocationTrace
from charact.record.schema import MEMORY_CATEGORIES

MAX_TIMELINE_SNAPSHOTS = 200


class Allocator(Protocol):
    """A device's memory allocator."""

    def allocate(self, num_bytes: int) -> int:
        """Allocate a block and return its handle."""

    def free(self, handle: int) -> None:
        """Free a block."""

    def size_of(self, handle: int) -> int:
        """Return the size of a block, at least the requested bytes."""

    @property
    def reserved_bytes(self) -> int | None:
        """Return the memory reserved from the device; None if the allocator reserves none."""


class HostAllocator:
    """The CPU's allocator: no rounding, and no reserved memory."""

    reserved_bytes = None

    def allocate(self, num_bytes: int) -> int:
        """Allocate a block; its handle is its size."""
        return num_bytes

    def free(self, handle: int) -> None:
        """Free a block."""

    def size_of(self, handle: int) -> int:
        """Return the size of a block: the requested bytes."""
        return handle


@dataclass(frozen=True)
class Snapshot:
    """Memory at one time of the iteration: bytes by category and origin."""

    phase: str
    layer: str | None
    operator: str | None
    held: dict[tuple[str, str], int]
    total_bytes: int


@dataclass(frozen=True)
class Replayed:
    """Result of a replay."""

    snapshots: list[Snapshot]
    """Snapshots after each operator, including its workspace."""
    reserved_bytes: int | None
    """Peak of the reserved memory; None on a CPU."""

    @property
    def peak(self) -> Snapshot:
        """Return the first snapshot with the most memory."""
        return max(self.snapshots, key=lambda snapshot: snapshot.total_bytes)

    def phase_peaks(self) -> dict[str, Snapshot]:
        """Return the peak snapshot of each phase."""
        peaks: dict[str, Snapshot] = {}
        for snapshot in self.snapshots:
            if snapshot.phase not in peaks or snapshot.total_bytes > peaks[snapshot.phase].total_bytes:
                peaks[snapshot.phase] = snapshot
        return peaks

    def rows(self) -> list[dict[str, Any]]:
        """Return rows of the table `memory`: the peak, each phase's peak, and the subsampled timeline."""
        peaks = self.phase_peaks()
        stride, numbers = -(-len(self.snapshots) // MAX_TIMELINE_SNAPSHOTS), set(map(id, peaks.values()))
        kept = [snapshot for i, snapshot in enumerate(self.snapshots) if i % stride == 0 or id(snapshot) in numbers]
        chosen = [("peak", None, self.peak), *(("phase_peak", None, snapshot) for snapshot in peaks.values()),
                  *(("timeline", number, snapshot) for number, snapshot in enumerate(kept))]
        return [row for kind, number, snapshot in chosen for row in _rows(kind, number, snapshot)]


def replay(trace: AllocationTrace, allocator: Allocator, workspaces: Sequence[int], sizes: Sequence[int] | None = None,
           library_blocks: Sequence[int] = ()) -> Replayed:
    """Replay an allocation trace.

    Args:
        trace: the allocations and frees.
        allocator: a new allocator of the device.
        workspaces: peak internal bytes of each operator in `trace.ops`, in addition to its outputs.
        sizes: bytes of each block in `trace.blocks`, if they differ from the trace's.
        library_blocks: bytes of blocks that libraries hold throughout.
    """
    sizes = sizes or [block.num_bytes for block in trace.blocks]
    held: dict[tuple[str, str], int] = defaultdict(int)
    handles: dict[int, int] = {}
    snapshots: list[Snapshot] = []
    total = reserved = 0

    def change(number: int, sign: int) -> None:
        nonlocal total
        category = trace.blocks[number].category
        handle = handles[number] if sign < 0 else handles.setdefault(number, allocator.allocate(sizes[number]))
        size = allocator.size_of(handle)
        held[category, "tensors"] += sign * sizes[number]
        held[category, "rounding"] += sign * (size - sizes[number])
        total += sign * size
        if sign < 0:
            allocator.free(handles.pop(number))

    def note(number: int, inside: int) -> None:
        nonlocal reserved
        op, now, size = trace.ops[number], dict(held), 0
        if inside:
            handle = allocator.allocate(inside)
            size = allocator.size_of(handle)
            now["temporary", "workspaces"] = now.get(("temporary", "workspaces"), 0) + size
            allocator.free(handle)
        reserved = max(reserved, allocator.reserved_bytes or 0)
        snapshots.append(Snapshot(op.phase, op.layer, op.name, now, total + size))

    for category in MEMORY_CATEGORIES:
        held[category, "tensors"] = 0
    for num_bytes in library_blocks:
        size = allocator.size_of(allocator.allocate(num_bytes))
        held["workspaces", "workspaces"] += size
        total += size
    for number in trace.held:
        change(number, +1)
    for kind, number in trace.events:
        if kind == "allocate":
            change(number, +1)
        elif kind == "free":
            change(number, -1)
        elif kind == "end":
            note(number, workspaces[number])
    return Replayed(snapshots, reserved or None)


def _rows(kind: str, number: int | None, snapshot: Snapshot) -> list[dict[str, Any]]:
    return [{"kind": kind, "method": "predicted", "phase": snapshot.phase, "layer": snapshot.layer,
             "operator": snapshot.operator, "moment": number, "category": category, "origin": origin,
             "bytes": float(num_bytes)}
            for (category, origin), num_bytes in snapshot.held.items() if num_bytes or origin == "tensors"]
