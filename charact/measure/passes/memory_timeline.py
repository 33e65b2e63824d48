"""Timeline of the memory in use during an iteration, by category, and its table rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from charact.measure.passes.block_owners import BlockOwners, Blocks
from charact.measure.passes.event_tree import Allocation, EventTree

MAX_TIMELINE_SNAPSHOTS = 200


@dataclass(frozen=True)
class MemorySnapshot:
    """Bytes in use by category, after an allocation or release or at a phase's start."""

    time_ns: int
    phase: str | None
    layer: str | None
    operator: str | None
    categories: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """Sum over the categories."""
        return sum(self.categories.values())


@dataclass
class _Block:
    """A block of the iteration, from its allocation to its release."""

    allocation: Allocation
    end: Allocation | None = None

    @property
    def end_ns(self) -> float:
        return float("inf") if self.end is None else self.end.time_ns


@dataclass(frozen=True)
class _Change:
    """Change of a category's bytes, and the operator that caused it."""

    time_ns: int
    category: str
    num_bytes: int
    layer: str | None = None
    operator: str | None = None


def snapshots_of(tree: EventTree, owners: BlockOwners, held: dict[str, int], *, failed: bool = False
                 ) -> list[MemorySnapshot]:
    """Return snapshots after every change and at every phase's start, in order of time.

    Args:
        tree: the iteration's events.
        owners: known blocks of input, gradients and optimizer state.
        held: bytes by category at the iteration's start.
        failed: whether the iteration failed.
    """
    held = held.copy()
    blocks = _pair(allocation for allocation in tree.allocations if owners.is_on_device(allocation.device))
    changes = [change for block in blocks for change in _changes(block, _category(block, tree, owners, failed))]
    changes += _unreported(tree, owners, {block.allocation.address for block in blocks})
    changes += [_Change(start_ns, "unknown", 0) for start_ns, _, _ in tree.phases]
    snapshots: dict[int, MemorySnapshot] = {}
    for change in sorted(changes, key=lambda change: (change.time_ns, change.category, change.num_bytes)):
        held[change.category] += change.num_bytes
        snapshots[change.time_ns] = MemorySnapshot(
            change.time_ns, tree.phase_at(change.time_ns), change.layer, change.operator, held.copy())
    return list(snapshots.values())


def phase_peaks(snapshots: Iterable[MemorySnapshot]) -> dict[str, MemorySnapshot]:
    """Return the first snapshot of each phase with the most bytes."""
    peaks: dict[str, MemorySnapshot] = {}
    for snapshot in snapshots:
        if snapshot.phase is not None and (
                snapshot.phase not in peaks or snapshot.total_bytes > peaks[snapshot.phase].total_bytes):
            peaks[snapshot.phase] = snapshot
    return peaks


def memory_rows(snapshots: list[MemorySnapshot]) -> list[dict[str, Any]]:
    """Return rows of the table `memory`: composition at the iteration's peak, at each phase's peak, and over time."""
    peaks = phase_peaks(snapshots)
    overall = max(peaks.values(), key=lambda snapshot: snapshot.total_bytes)
    # Keep every n-th snapshot and all peaks.
    stride = -(-len(snapshots) // MAX_TIMELINE_SNAPSHOTS)
    kept = [snapshot for i, snapshot in enumerate(snapshots) if i % stride == 0 or snapshot in peaks.values()]
    begun_ns = snapshots[0].time_ns
    shown = [("peak", overall, None, None), *(("phase_peak", snapshot, None, None) for snapshot in peaks.values()),
             *(("timeline", snapshot, index, (snapshot.time_ns - begun_ns) / 1e9)
               for index, snapshot in enumerate(kept))]
    return [
        {"kind": kind, "method": "measured", "phase": snapshot.phase, "layer": snapshot.layer,
         "operator": snapshot.operator, "moment": index, "time_s": time_s, "category": category,
         "bytes": float(num_bytes)}
        for kind, snapshot, index, time_s in shown for category, num_bytes in snapshot.categories.items()
    ]


def _pair(allocations: Iterable[Allocation]) -> list[_Block]:
    """Pair each block's allocation with its release; skip releases of older blocks."""
    live: dict[int, _Block] = {}
    blocks = []
    for event in allocations:
        if event.num_bytes > 0:
            live[event.address] = _Block(event)
            blocks.append(live[event.address])
        elif event.address in live:
            live.pop(event.address).end = event
    return blocks


def _category(block: _Block, tree: EventTree, owners: BlockOwners, failed: bool) -> str:
    """Return the category of a block that the iteration allocated."""
    made = block.allocation
    phase, made_ns = tree.phase_at(made.time_ns), made.time_ns
    phase_end_ns = next((end_ns for start_ns, end_ns, _ in tree.phases if start_ns <= made_ns < end_ns), 0)
    if block.end_ns > phase_end_ns:
        for address_of, category, made_in in ((owners.input, "input", "data"),
                                              (owners.gradients, "gradients", "backward"),
                                              (owners.optimizer_state, "optimizer_state", "update")):
            if made.address in address_of and phase == made_in:
                return category
    if phase in ("forward", "loss") and block.end_ns > made.operator_end_ns:
        return "activations"
    return "unknown" if block.end is None and not failed else "temporary"


def _changes(block: _Block, category: str) -> list[_Change]:
    made, gone = block.allocation, block.end
    changes = [_Change(made.time_ns, category, made.num_bytes, made.layer, made.operator)]
    if gone is not None:
        changes.append(_Change(gone.time_ns, category, -made.num_bytes, gone.layer, gone.operator))
    return changes


def _unreported(tree: EventTree, owners: BlockOwners, seen: set[int]) -> list[_Change]:
    """Return changes that the allocator does not report, or not in pairs."""
    changes = [_Change(time_ns, owners.before[number].category, -owners.before[number].num_bytes)
               for time_ns, number in tree.releases]
    foreign: Blocks = {address: size for address, size in owners.batch.items() if address not in seen}
    if foreign and owners.device.type == "cpu":  # a worker's batch arrives in shared memory
        data_end_ns = next((end_ns for _, end_ns, phase in tree.phases if phase == "data"), 0)
        changes.append(_Change(data_end_ns, "input", sum(foreign.values())))
    return changes
