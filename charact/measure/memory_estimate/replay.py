"""Replay of an allocation trace through a device's allocator: memory over time by category and origin.

Source of CUDA's caching allocator: pytorch/pytorch, `c10/cuda/CUDACachingAllocator.cpp` and
`c10/core/CachingDeviceAllocator.h`, with the defaults of `PYTORCH_CUDA_ALLOC_CONF` (no rounding to powers of two,
blocks of any size are split, no expandable segments) and one stream.

Error: modelled. CUDA's own memory per segment is not included. On a real device out of memory the allocator releases
unused segments and retries, so it may need less than is reserved here.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from charact.core.memory_curve import Block, MemoryCurve, Place
from charact.measure.memory_estimate.allocation_trace import AllocationTrace
from charact.record.schema import MEMORY_CATEGORIES

GRANULE_BYTES = 512
"""Requests are rounded up to a multiple of this."""
MAX_SMALL_BYTES = 2**20
"""Largest request that is served from the small pool."""
SMALL_SEGMENT_BYTES = 2 * 2**20
LARGE_SEGMENT_BYTES = 20 * 2**20
"""Size of a segment shared by large requests below `MIN_OWN_SEGMENT_BYTES`."""
MIN_OWN_SEGMENT_BYTES = 10 * 2**20
SEGMENT_GRANULE_BYTES = 2 * 2**20
"""Requests of at least `MIN_OWN_SEGMENT_BYTES` get their own segment, rounded up to a multiple of this."""


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


@dataclass(slots=True, eq=False)
class _Part:
    """A part of a segment, allocated or free, with its neighbours."""

    address: int
    size: int
    pool: list[tuple[int, int]]
    """Sorted (size, address) of the pool's free parts."""
    before: "_Part | None" = None
    after: "_Part | None" = None
    is_free: bool = True


class CachingAllocator:
    """Allocated and reserved memory of a CUDA device for a sequence of requests.

    A request gets the smallest free block that is large enough, at the lowest address among equals. The rest of the
    block is split off: always in the small pool, and in the large pool if it exceeds 1 MiB. So a block can be larger
    than requested, and PyTorch counts all of it as allocated.
    """

    def __init__(self) -> None:
        self.allocated_bytes = 0
        """Sum of the allocated blocks: `torch.cuda.memory_allocated`."""
        self.reserved_bytes = 0
        """Sum of the segments, which are never released: `torch.cuda.memory_reserved`."""
        self._small: list[tuple[int, int]] = []
        self._large: list[tuple[int, int]] = []
        self._parts: dict[int, _Part] = {}
        """All parts by address."""

    def allocate(self, num_bytes: int) -> int:
        """Allocate a block; its handle is its address, or -1 for a request of 0 bytes."""
        if num_bytes == 0:
            return -1
        size = _up(num_bytes, GRANULE_BYTES)
        is_small = size <= MAX_SMALL_BYTES
        pool = self._small if is_small else self._large
        index = bisect_left(pool, (size, 0))
        if index < len(pool):
            part = self._parts[pool.pop(index)[1]]
        else:
            shared_bytes = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
            is_shared = size < MIN_OWN_SEGMENT_BYTES
            # Segments are never released, so their sum is an unused address.
            part = _Part(self.reserved_bytes, shared_bytes if is_shared else _up(size, SEGMENT_GRANULE_BYTES), pool)
            self._parts[part.address] = part
            self.reserved_bytes += part.size
        left = part.size - size
        if left >= GRANULE_BYTES if is_small else left > MAX_SMALL_BYTES:
            rest = _Part(part.address + size, left, pool, before=part, after=part.after)
            if part.after is not None:
                part.after.before = rest
            part.after, part.size = rest, size
            self._parts[rest.address] = rest
            insort(pool, (left, rest.address))
        part.is_free = False
        self.allocated_bytes += part.size
        return part.address

    def free(self, handle: int) -> None:
        """Free a block, and merge it with free neighbours in its segment."""
        if handle == -1:
            return
        part = self._parts[handle]
        self.allocated_bytes -= part.size
        for neighbour in (part.before, part.after):
            if neighbour is not None and neighbour.is_free:
                del part.pool[bisect_left(part.pool, (neighbour.size, neighbour.address))]
                first, second = (neighbour, part) if neighbour is part.before else (part, neighbour)
                first.size += second.size
                first.after = second.after
                if second.after is not None:
                    second.after.before = first
                del self._parts[second.address]
                part = first
        part.is_free = True
        insort(part.pool, (part.size, part.address))

    def size_of(self, handle: int) -> int:
        """Return the size of an allocated block, at least the requested bytes."""
        return 0 if handle == -1 else self._parts[handle].size


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class Replayed(NamedTuple):
    """Result of a replay."""

    curve: MemoryCurve
    """Memory after each operator, including its workspace."""
    reserved_bytes: int | None
    """Peak of the reserved memory; None on a CPU."""


def replay(trace: AllocationTrace, allocator: HostAllocator | CachingAllocator, workspaces: Sequence[int],
           sizes: Sequence[int] | None = None, library_blocks: Sequence[int] = ()) -> Replayed:
    """Replay an allocation trace through a new allocator.

    `workspaces` are the peak internal bytes of each operator, in addition to its outputs; `sizes` the bytes of each
    block, if they differ from the trace's; `library_blocks` those of blocks that libraries hold throughout.
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
