"""Replay of an allocation trace through a device's allocator: memory over time by category and origin."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from charact.core.memory_curve import Block, MemoryCurve, Place
from charact.measure.memory_estimate.allocation_trace import AllocationTrace
from charact.record.schema import MEMORY_CATEGORIES


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


class Replayed(NamedTuple):
    """Result of a replay."""

    curve: MemoryCurve
    """Memory after each operator, including its workspace."""
    reserved_bytes: int | None
    """Peak of the reserved memory; None on a CPU."""


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
    blocks = [Block(allocator.size_of(allocator.allocate(num_bytes)), "workspaces", origin="workspaces")
              for num_bytes in library_blocks]
    handles: dict[int, int] = {}
    reserved = 0
    events = [(block.birth or 0, "allocate", number) for number, block in enumerate(trace.blocks)]
    events += [(block.death, "free", number) for number, block in enumerate(trace.blocks) if block.death is not None]
    events += [(op.end, "end", number) for number, op in enumerate(trace.ops)]
    for moment, kind, number in sorted(events):
        if kind == "allocate":
            handles[number] = allocator.allocate(sizes[number])
            rounding = allocator.size_of(handles[number]) - sizes[number]
            blocks.append(replace(trace.blocks[number], num_bytes=sizes[number], origin="tensors"))
            if rounding:
                blocks.append(replace(trace.blocks[number], num_bytes=rounding, origin="rounding"))
        elif kind == "free":
            allocator.free(handles.pop(number))
        else:
            if workspaces[number]:
                handle = allocator.allocate(workspaces[number])
                size = allocator.size_of(handle)
                blocks.append(Block(size, birth=moment, death=moment + 1, origin="workspaces"))
                allocator.free(handle)
            reserved = max(reserved, allocator.reserved_bytes or 0)
    curve = MemoryCurve.of(blocks, [Place(op.end, op.phase, op.layer, op.name) for op in trace.ops],
                           [(category, "tensors") for category in MEMORY_CATEGORIES])
    return Replayed(curve, reserved or None)
