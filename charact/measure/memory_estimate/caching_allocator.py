"""Model of PyTorch's CUDA caching allocator: allocated and reserved memory.

Source: pytorch/pytorch, `c10/cuda/CUDACachingAllocator.cpp` and `c10/core/CachingDeviceAllocator.h`, with the defaults
of `PYTORCH_CUDA_ALLOC_CONF` (no rounding to powers of two, blocks of any size are split, no expandable segments) and
one stream.

Error: modelled. CUDA's own memory per segment is not included. On a real device out of memory the allocator releases
unused segments and retries, so it may need less than is reserved here.
"""

from bisect import bisect_left, insort

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


class _Block:
    """A block of a segment, with its neighbours."""

    __slots__ = ("address", "after", "before", "free_blocks", "is_free", "size")

    def __init__(self, address: int, size: int, free_blocks: "list[tuple[int, int]]") -> None:
        self.address, self.size, self.free_blocks = address, size, free_blocks
        self.is_free = True
        self.before: _Block | None = None
        self.after: _Block | None = None


class CachingAllocator:
    """Allocated and reserved memory for a sequence of requests.

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
        """Sorted (size, address) of the free blocks of the pool."""
        self._large: list[tuple[int, int]] = []
        self._blocks: dict[int, _Block] = {}
        """All blocks by address."""

    def allocate(self, num_bytes: int) -> int:
        """Allocate a block; its handle is its address, or -1 for a request of 0 bytes."""
        if num_bytes == 0:
            return -1
        size = -(-num_bytes // GRANULE_BYTES) * GRANULE_BYTES
        is_small = size <= MAX_SMALL_BYTES
        free_blocks = self._small if is_small else self._large
        place = bisect_left(free_blocks, (size, 0))
        if place < len(free_blocks):
            block = self._blocks[free_blocks.pop(place)[1]]
        else:
            block = self._new_segment(size, free_blocks)
        left = block.size - size
        if left >= GRANULE_BYTES if is_small else left > MAX_SMALL_BYTES:
            self._split(block, size)
        block.is_free = False
        self.allocated_bytes += block.size
        return block.address

    def free(self, handle: int) -> None:
        """Free a block, and merge it with free neighbours in its segment."""
        if handle == -1:
            return
        block = self._blocks[handle]
        self.allocated_bytes -= block.size
        before, after = block.before, block.after
        if after is not None and after.is_free:
            self._take_out(after)
            self._join(block, after)
        if before is not None and before.is_free:
            self._take_out(before)
            self._join(before, block)
            block = before
        block.is_free = True
        insort(block.free_blocks, (block.size, block.address))

    def size_of(self, handle: int) -> int:
        """Return the size of an allocated block, at least the requested bytes."""
        return 0 if handle == -1 else self._blocks[handle].size

    def _new_segment(self, size: int, free_blocks: list[tuple[int, int]]) -> _Block:
        if size <= MAX_SMALL_BYTES:
            num_bytes = SMALL_SEGMENT_BYTES
        elif size < MIN_OWN_SEGMENT_BYTES:
            num_bytes = LARGE_SEGMENT_BYTES
        else:
            num_bytes = -(-size // SEGMENT_GRANULE_BYTES) * SEGMENT_GRANULE_BYTES
        # Segments are never released, so their sum is an unused address.
        block = self._blocks[self.reserved_bytes] = _Block(self.reserved_bytes, num_bytes, free_blocks)
        self.reserved_bytes += num_bytes
        return block

    def _split(self, block: _Block, size: int) -> None:
        """Split a block; the rest after `size` bytes becomes a free block."""
        rest = _Block(block.address + size, block.size - size, block.free_blocks)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        self._blocks[rest.address] = rest
        insort(block.free_blocks, (rest.size, rest.address))

    def _take_out(self, block: _Block) -> None:
        del block.free_blocks[bisect_left(block.free_blocks, (block.size, block.address))]

    def _join(self, first: _Block, second: _Block) -> None:
        """Merge two neighbours into one block at the address of the first."""
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        del self._blocks[second.address]
