"""PyTorch's caching allocator on a CUDA device, played through: how much it hands out and how much it reserves.

Source: pytorch/pytorch, `c10/cuda/CUDACachingAllocator.cpp` and `c10/core/CachingDeviceAllocator.h`, with the defaults
of `PYTORCH_CUDA_ALLOC_CONF` (no rounding to powers of two, blocks of any size are split, no expandable segments) and
one stream.

Error: modelled. What CUDA itself keeps beside a segment is not in it. A real device out of memory gives unused segments
back and asks again, so it may get by with less than is reserved here.
"""

from bisect import bisect_left, insort

GRANULE_BYTES = 512
"""Requests are rounded up to a multiple of this."""
MAX_SMALL_BYTES = 2**20
"""Largest request that goes to the pool of small ones."""
SMALL_SEGMENT_BYTES = 2 * 2**20
LARGE_SEGMENT_BYTES = 20 * 2**20
"""Segment of a large request under `MIN_OWN_SEGMENT_BYTES`, which others are then cut from."""
MIN_OWN_SEGMENT_BYTES = 10 * 2**20
SEGMENT_GRANULE_BYTES = 2 * 2**20
"""Larger requests have a segment of their own, rounded up to a multiple of this."""


class _Block:
    """A stretch of a segment, with its neighbours there."""

    __slots__ = ("address", "after", "before", "free_blocks", "is_free", "size")

    def __init__(self, address: int, size: int, free_blocks: "list[tuple[int, int]]") -> None:
        self.address, self.size, self.free_blocks = address, size, free_blocks
        self.is_free = True
        self.before: _Block | None = None
        self.after: _Block | None = None


class CachingAllocator:
    """What is handed out and what is reserved, as requests come and go.

    A block is the smallest free one that is large enough, at the lowest address among equals. What is left of it is
    cut off: in the pool of small requests always, in that of large ones if it is more than 1 MiB. So a block can be
    larger than was asked for, and PyTorch counts all of it as allocated.
    """

    def __init__(self) -> None:
        self.allocated_bytes = 0
        """Sum of the blocks that are handed out: `torch.cuda.memory_allocated`."""
        self.reserved_bytes = 0
        """Sum of the segments, which are never given back: `torch.cuda.memory_reserved`."""
        self._small: list[tuple[int, int]] = []
        """(size, address) of the free blocks of a pool, in order."""
        self._large: list[tuple[int, int]] = []
        self._blocks: dict[int, _Block] = {}
        """Address -> block, free or not."""

    def allocate(self, num_bytes: int) -> int:
        """Hand out a block; its handle is its address. Nothing that is asked for is handle -1 and takes no memory."""
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
        """Take a block back; free neighbours in its segment become one with it."""
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
        """Bytes of a block that is handed out, at least those that were asked for."""
        return 0 if handle == -1 else self._blocks[handle].size

    def _new_segment(self, size: int, free_blocks: list[tuple[int, int]]) -> _Block:
        if size <= MAX_SMALL_BYTES:
            num_bytes = SMALL_SEGMENT_BYTES
        elif size < MIN_OWN_SEGMENT_BYTES:
            num_bytes = LARGE_SEGMENT_BYTES
        else:
            num_bytes = -(-size // SEGMENT_GRANULE_BYTES) * SEGMENT_GRANULE_BYTES
        # Segments are never given back, so their sum is an address that is not taken.
        block = self._blocks[self.reserved_bytes] = _Block(self.reserved_bytes, num_bytes, free_blocks)
        self.reserved_bytes += num_bytes
        return block

    def _split(self, block: _Block, size: int) -> None:
        """Cut a block to a size; what is left behind it is free."""
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
        """Make two neighbours one, at the address of the first."""
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        del self._blocks[second.address]
