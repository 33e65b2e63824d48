"""What is held from moment to moment of a watched iteration, by category, and the rows that tell it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from charact.measure.passes.block_owners import Blocks, Holders
from charact.measure.passes.event_tree import Allocation, EventTree

MAX_TIMELINE_MOMENTS = 200


@dataclass(frozen=True)
class Moment:
    """Bytes held by category, from an allocation, a release or a phase's start on."""

    time_ns: int
    phase: str | None
    layer: str | None
    operator: str | None
    categories: dict[str, int]

    @property
    def total_bytes(self) -> int:
        """All that is held."""
        return sum(self.categories.values())


@dataclass
class _Block:
    """One allocation of the iteration, from when to when it was held."""

    allocation: Allocation
    end: Allocation | None = None

    @property
    def end_ns(self) -> float:
        return float("inf") if self.end is None else self.end.time_ns


@dataclass(frozen=True)
class _Change:
    """So many bytes more or less of a category, and the layer and operator at work."""

    time_ns: int
    category: str
    num_bytes: int
    layer: str | None = None
    operator: str | None = None


def moments_of(tree: EventTree, holders: Holders, held: dict[str, int], *, failed: bool = False) -> list[Moment]:
    """What is held after every change, and at every phase's start, by time.

    Args:
        tree: the iteration's events.
        holders: what held the input, the gradients and the optimizer's state between its phases.
        held: bytes by category when it began.
        failed: whether it did not come to its end.
    """
    held, device = held.copy(), holders.device.type
    blocks = _pair(allocation for allocation in tree.allocations if allocation.device.startswith(device))
    changes = [change for block in blocks for change in _changes(block, _category(block, tree, holders, failed))]
    changes += _unreported(tree, holders, {block.allocation.address for block in blocks})
    changes += [_Change(start_ns, "unknown", 0) for start_ns, _, _ in tree.phases]
    moments: dict[int, Moment] = {}
    for change in sorted(changes, key=lambda change: (change.time_ns, change.category, change.num_bytes)):
        held[change.category] += change.num_bytes
        moments[change.time_ns] = Moment(change.time_ns, tree.phase_at(change.time_ns), change.layer, change.operator,
                                         held.copy())
    return list(moments.values())


def phase_peaks(moments: Iterable[Moment]) -> dict[str, Moment]:
    """The moment of each phase at which most is held; the first of them."""
    peaks: dict[str, Moment] = {}
    for moment in moments:
        if moment.phase is not None and (
                moment.phase not in peaks or moment.total_bytes > peaks[moment.phase].total_bytes):
            peaks[moment.phase] = moment
    return peaks


def memory_rows(moments: list[Moment]) -> list[dict[str, Any]]:
    """Rows of the table `memory`: composition at the iteration's peak, at each phase's, and over time."""
    peaks = phase_peaks(moments)
    overall = max(peaks.values(), key=lambda moment: moment.total_bytes)
    # Thinned out evenly, but for the peaks, which must not be lost.
    stride = -(-len(moments) // MAX_TIMELINE_MOMENTS)
    kept = [moment for i, moment in enumerate(moments) if i % stride == 0 or moment in peaks.values()]
    begun_ns = moments[0].time_ns
    shown = [("peak", overall, None, None), *(("phase_peak", moment, None, None) for moment in peaks.values()),
             *(("timeline", moment, number, (moment.time_ns - begun_ns) / 1e9) for number, moment in enumerate(kept))]
    return [
        {"kind": kind, "method": "measured", "phase": moment.phase, "layer": moment.layer, "operator": moment.operator,
         "moment": number, "time_s": time_s, "category": category, "bytes": float(num_bytes)}
        for kind, moment, number, time_s in shown for category, num_bytes in moment.categories.items()
    ]


def _pair(allocations: Iterable[Allocation]) -> list[_Block]:
    """Join each block's allocation with its release; releases of older blocks are left out."""
    live: dict[int, _Block] = {}
    blocks = []
    for event in allocations:
        if event.num_bytes > 0:
            live[event.address] = _Block(event)
            blocks.append(live[event.address])
        elif event.address in live:
            live.pop(event.address).end = event
    return blocks


def _category(block: _Block, tree: EventTree, holders: Holders, failed: bool) -> str:
    """Category of a block that the iteration allocated."""
    made = block.allocation
    phase, made_ns = tree.phase_at(made.time_ns), made.time_ns
    phase_end_ns = next((end_ns for start_ns, end_ns, _ in tree.phases if start_ns <= made_ns < end_ns), 0)
    if block.end_ns > phase_end_ns:
        for address_of, category, made_in in ((holders.input, "input", "data"),
                                              (holders.gradients, "gradients", "backward"),
                                              (holders.optimizer_state, "optimizer_state", "update")):
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


def _unreported(tree: EventTree, holders: Holders, seen: set[int]) -> list[_Change]:
    """What the allocator does not report, or not so that it could be paired."""
    changes = [_Change(time_ns, holders.before[number].category, -holders.before[number].num_bytes)
               for time_ns, number in tree.releases]
    foreign: Blocks = {address: size for address, size in holders.batch.items() if address not in seen}
    if foreign and holders.device.type == "cpu":  # a worker's batch arrives in shared memory
        data_end_ns = next((end_ns for _, end_ns, phase in tree.phases if phase == "data"), 0)
        changes.append(_Change(data_end_ns, "input", sum(foreign.values())))
    return changes
