"""Playing a tape back through a device's allocator: what is held when, for what, and what of it is no tensor."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from charact.measure.memory_estimate.allocation_trace import Tape
from charact.record.schema import MEMORY_CATEGORIES

MAX_TIMELINE_SNAPSHOTS = 200


class Allocator(Protocol):
    """What hands out memory on a device."""

    def allocate(self, num_bytes: int) -> int:
        """Hand out a block; returns its handle."""

    def free(self, handle: int) -> None:
        """Take a block back."""

    def size_of(self, handle: int) -> int:
        """Bytes of a block, at least those that were asked for."""

    @property
    def reserved_bytes(self) -> int | None:
        """What the allocator holds of the device's memory by now; None where it keeps nothing."""


class HostAllocator:
    """The CPU's: a block is as large as was asked for, and nothing is kept."""

    reserved_bytes = None

    def allocate(self, num_bytes: int) -> int:
        """Hand out a block; its handle is its size."""
        return num_bytes

    def free(self, handle: int) -> None:
        """Take a block back."""

    def size_of(self, handle: int) -> int:
        """Bytes of a block: what was asked for."""
        return handle


@dataclass(frozen=True)
class Moment:
    """What is held at a moment of the iteration: bytes by category and origin."""

    phase: str
    layer: str | None
    operator: str | None
    held: dict[tuple[str, str], int]
    total_bytes: int


@dataclass(frozen=True)
class Replayed:
    """A tape as an allocator sees it."""

    moments: list[Moment]
    """After each operator, and at each phase's first; the inside of an operator counts as the moment after it."""
    reserved_bytes: int | None
    """The most that the allocator held of the device's memory; None on a CPU."""

    @property
    def peak(self) -> Moment:
        """The moment at which most is held; the first of them."""
        return max(self.moments, key=lambda moment: moment.total_bytes)

    def phase_peaks(self) -> dict[str, Moment]:
        """The same in each phase."""
        peaks: dict[str, Moment] = {}
        for moment in self.moments:
            if moment.phase not in peaks or moment.total_bytes > peaks[moment.phase].total_bytes:
                peaks[moment.phase] = moment
        return peaks

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the table `memory`: the peak's composition, each phase's, and the timeline, thinned out."""
        peaks = self.phase_peaks()
        stride, numbers = -(-len(self.moments) // MAX_TIMELINE_SNAPSHOTS), set(map(id, peaks.values()))
        kept = [moment for i, moment in enumerate(self.moments) if i % stride == 0 or id(moment) in numbers]
        chosen = [("peak", None, self.peak), *(("phase_peak", None, moment) for moment in peaks.values()),
                  *(("timeline", number, moment) for number, moment in enumerate(kept))]
        return [row for kind, number, moment in chosen for row in _rows(kind, number, moment)]


def replay(tape: Tape, allocator: Allocator, workspaces: Sequence[int], sizes: Sequence[int] | None = None,
           library_blocks: Sequence[int] = ()) -> Replayed:
    """Play a tape back.

    Args:
        tape: what is made and given back.
        allocator: that of the device, fresh.
        workspaces: bytes that each operator needs inside at the most, on top of what it makes; by `tape.ops`.
        sizes: bytes of each of `tape.blocks`, where they differ from the tape's.
        library_blocks: bytes of blocks that libraries hold all the while.
    """
    sizes = sizes or [block.num_bytes for block in tape.blocks]
    held: dict[tuple[str, str], int] = defaultdict(int)
    handles: dict[int, int] = {}
    moments: list[Moment] = []
    total = reserved = 0

    def change(number: int, sign: int) -> None:
        nonlocal total
        category = tape.blocks[number].category
        handle = handles[number] if sign < 0 else handles.setdefault(number, allocator.allocate(sizes[number]))
        size = allocator.size_of(handle)
        held[category, "tensors"] += sign * sizes[number]
        held[category, "rounding"] += sign * (size - sizes[number])
        total += sign * size
        if sign < 0:
            allocator.free(handles.pop(number))

    def note(number: int, inside: int) -> None:
        nonlocal reserved
        op, now, size = tape.ops[number], dict(held), 0
        if inside:
            handle = allocator.allocate(inside)
            size = allocator.size_of(handle)
            now["temporary", "workspaces"] = now.get(("temporary", "workspaces"), 0) + size
            allocator.free(handle)
        reserved = max(reserved, allocator.reserved_bytes or 0)
        moments.append(Moment(op.phase, op.layer, op.name, now, total + size))

    for category in MEMORY_CATEGORIES:
        held[category, "tensors"] = 0
    for num_bytes in library_blocks:
        size = allocator.size_of(allocator.allocate(num_bytes))
        held["temporary", "workspaces"] += size
        total += size
    for number in tape.held:
        change(number, +1)
    for kind, number in tape.events:
        if kind == "allocate":
            change(number, +1)
        elif kind == "free":
            change(number, -1)
        elif kind == "end":
            note(number, workspaces[number])
    return Replayed(moments, reserved or None)


def _rows(kind: str, number: int | None, moment: Moment) -> list[dict[str, Any]]:
    return [{"kind": kind, "method": "predicted", "phase": moment.phase, "layer": moment.layer,
             "operator": moment.operator, "moment": number, "category": category, "origin": origin,
             "bytes": float(num_bytes)}
            for (category, origin), num_bytes in moment.held.items() if num_bytes or origin == "tensors"]
