"""Replay of an allocator's history: allocated and reserved bytes over time, the peak, and what holds memory.

Allocated bytes are those that the program requested and has not asked to free; a block waits for its free to complete
outside of them, as in `torch.cuda.memory_allocated`. Reserved bytes are those of the segments. The snapshot has the
state at the end, so that a replay knows both from the first event of the history on, also if older events were lost.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from operator import le
from typing import NamedTuple

from charact.traces.snapshots.memory_snapshots import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    OOM,
    RELEASE,
    RESERVE,
    Device,
)

BEFORE = -2
"""Site of a block that was allocated before the history, and of which only the free is known."""
START = -1
"""Position of the moment before the first event."""
MOST_OOMS = 20
"""Largest number of events `OOM` of which it is known what held memory."""
_NUM_PARTS = 190
_NONE = -1


class Moment(NamedTuple):
    """Bytes after an event of the history, or before the first one."""

    position: int
    allocated_bytes: int
    reserved_bytes: int | None


class Held(NamedTuple):
    """Blocks of a site that are allocated at a moment."""

    site: int
    num_bytes: int
    num_blocks: int


class Before(NamedTuple):
    """Blocks that were allocated before the history."""

    num_bytes: int
    num_blocks: int


@dataclass
class Replay:
    """What the history of a device shows."""

    peak: Moment
    """First moment with the most allocated bytes."""
    reserved_peak: Moment | None
    """First moment with the most reserved bytes; None if reserved bytes are not known."""
    curve: list[Moment]
    """The moment with the most allocated bytes of each of 190 parts of the history, the first and last ones, and the
    peaks."""
    holders: dict[int, list[Held]]
    """Blocks at the peak and at each `OOM`, by position, those with most bytes first."""
    before: Before
    """Allocated before the history."""
    before_at_peak: Before
    num_frees_of_unknown: int
    """Frees of blocks that were allocated before the history."""
    num_frees_not_seen: int
    """Blocks that the history allocates without a free, and that are free in the segments or allocated again."""
    at_ooms: list[Moment]


class _Blocks:
    """All blocks of a history: how long each was allocated."""

    def __init__(self, num_events: int) -> None:
        self.sizes, self.sites = array("q"), array("i")
        self.born, self.died = array("q", [_NONE]) * num_events, array("q", [_NONE]) * num_events
        """The block that an event allocates or frees."""
        self.before: list[int] = []

    def add(self, num_bytes: int, site: int, born: int | None) -> int:
        number = len(self.sizes)
        self.sizes.append(num_bytes)
        self.sites.append(site)
        if born is None:
            self.before.append(number)
        else:
            self.born[born] = number
        return number


def replay(device: Device) -> Replay:
    """Replay the history of a device, which has events.

    A block is freed by the request, or by the completion if the history has no request of it. A second allocation at
    an address frees the block that was there.
    """
    history = device.history
    blocks = _Blocks(len(history))
    allocated: dict[int, int] = {}
    has_requests = FREE_REQUESTED in history.actions
    num_unknown = num_not_seen = 0
    for position, (action, address, size, site) in enumerate(
            zip(history.actions, history.addresses, history.sizes, history.sites, strict=True)):
        if action == ALLOC:
            if (lost := allocated.pop(address, None)) is not None:
                blocks.died[position] = lost
                num_not_seen += 1
            allocated[address] = blocks.add(size, site, position)
        elif action == FREE_REQUESTED or (action == FREE_COMPLETED and (not has_requests or address in allocated)):
            if (freed := allocated.pop(address, None)) is None:
                freed = blocks.add(size, BEFORE, None)
                num_unknown += 1
            blocks.died[position] = freed
    return _measured(device, blocks, num_unknown, num_not_seen + _match_segments(device, blocks, allocated))


def _match_segments(device: Device, blocks: _Blocks, allocated: dict[int, int]) -> int:
    """Add blocks of the segments that the history does not allocate; return the number of blocks that are not there.

    Such a block was freed after the history ended: it counts as allocated to the end.
    """
    missing = dict(allocated)
    for block in (block for segment in device.segments for block in segment.blocks if block.state == "allocated"):
        size = block.num_bytes if block.requested_bytes is None else block.requested_bytes
        known = missing.get(block.address)
        if known is not None and blocks.sizes[known] == size:
            del missing[block.address]
        else:
            blocks.add(size, block.site, None)
    return len(missing)


def _measured(device: Device, blocks: _Blocks, num_unknown: int, num_not_seen: int) -> Replay:
    held, reserved = _curves(device, blocks)
    is_sound = all(map(le, held, reserved))

    def moment(number: int) -> Moment:
        return Moment(number + START, held[number], reserved[number] if is_sound else None)

    peak, reserved_peak = (max(range(len(curve)), key=curve.__getitem__) for curve in (held, reserved))
    at_ooms = [moment(number) for number, action in enumerate(device.history.actions, -START) if action == OOM]
    step = -(-len(held) // _NUM_PARTS)
    fullest = (max(range(first, min(first + step, len(held))), key=held.__getitem__)
               for first in range(0, len(held), step))
    shown = {0, len(held) - 1, peak, *([reserved_peak] if is_sound else []), *fullest}
    holders, before_at_peak = _holders(blocks, [each.position for each in at_ooms[:MOST_OOMS]], peak + START)
    return Replay(moment(peak), moment(reserved_peak) if is_sound else None, list(map(moment, sorted(shown))), holders,
                  _sum(blocks, blocks.before), before_at_peak, num_unknown, num_not_seen, at_ooms)


def _curves(device: Device, blocks: _Blocks) -> "tuple[array[int], array[int]]":
    """Return allocated and reserved bytes before the first event, and after each event."""
    history, sizes = device.history, blocks.sizes
    signs = {RESERVE: 1, RELEASE: -1}
    changes = array("q", (signs.get(action, 0) * size
                          for action, size in zip(history.actions, history.sizes, strict=True)))
    held = array("q", [sum(sizes[number] for number in blocks.before)])
    reserved = array("q", [sum(segment.num_bytes for segment in device.segments) - sum(changes)])
    for born, died, change in zip(blocks.born, blocks.died, changes, strict=True):
        held.append(held[-1] + (sizes[born] if born >= 0 else 0) - (sizes[died] if died >= 0 else 0))
        reserved.append(reserved[-1] + change)
    return held, reserved


def _holders(blocks: _Blocks, positions: Iterable[int], peak: int) -> tuple[dict[int, list[Held]], Before]:
    """Return what holds memory at some positions and at the peak, and the part at the peak from before the history."""
    held: dict[int, list[int]] = {}
    before = set(blocks.before)
    before_bytes, num_before = _sum(blocks, blocks.before)
    found: dict[int, list[Held]] = {}
    at_peak = Before(0, 0)

    def change(number: int, sign: int) -> None:
        of_site = held.setdefault(blocks.sites[number], [0, 0])
        of_site[0] += sign * blocks.sizes[number]
        of_site[1] += sign

    def look(position: int) -> None:
        found[position] = sorted((Held(site, num_bytes, num_blocks) for site, (num_bytes, num_blocks) in held.items()
                                  if num_blocks), key=lambda each: (-each.num_bytes, each.site))

    for number in blocks.before:
        change(number, 1)
    following = sorted({*positions, peak}, reverse=True)
    for position in range(START, len(blocks.born)):
        if position >= 0:
            if (number := blocks.died[position]) >= 0:
                change(number, -1)
                if number in before:
                    before_bytes, num_before = before_bytes - blocks.sizes[number], num_before - 1
            if (number := blocks.born[position]) >= 0:
                change(number, 1)
        if following and following[-1] == position:
            look(following.pop())
            if position == peak:
                at_peak = Before(before_bytes, num_before)
            if not following:
                break
    return found, at_peak


def _sum(blocks: _Blocks, numbers: Iterable[int]) -> Before:
    sizes = [blocks.sizes[number] for number in numbers]
    return Before(sum(sizes), len(sizes))

