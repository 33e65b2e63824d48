"""Memory over time: blocks with a birth and a death, the bytes in use at each moment, and peaks. Imports no torch.

All moments are integers in one unit of the caller's, such as nanoseconds of the host's clock or numbers of events.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple

MAX_TIMELINE_SNAPSHOTS = 200
"""Maximum number of snapshots of a recorded timeline, besides the peaks of phases."""

Key = tuple[str, str | None]
"""Category and origin of bytes; measured bytes have no origin."""


@dataclass(slots=True)
class Block:
    """Memory that is allocated and released as a whole."""

    num_bytes: int
    category: str = "temporary"
    phase: str | None = None
    """Phase of its allocation."""
    birth: int | None = None
    """Moment of its allocation; None if it was before the curve."""
    death: int | None = None
    """Moment of its release; None if it is not released."""
    origin: str | None = None


class Place(NamedTuple):
    """A moment, and what ran then."""

    moment: int
    phase: str | None
    layer: str | None = None
    operator: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """Bytes in use after all changes at a moment."""

    place: Place
    held: dict[Key, int]
    total_bytes: int
    reserved_bytes: int | None = None
    """None if it is not known what the allocator had reserved."""

    @property
    def categories(self) -> dict[str, int]:
        """Bytes by category."""
        sums: dict[str, int] = {}
        for (category, _), num_bytes in self.held.items():
            sums[category] = sums.get(category, 0) + num_bytes
        return sums


@dataclass(frozen=True)
class MemoryCurve:
    """Snapshots in order of time."""

    snapshots: list[Snapshot]

    @classmethod
    def of(cls, blocks: Iterable[Block], places: Iterable[Place], keys: Iterable[Key] = ()) -> "MemoryCurve":
        """Return the bytes of blocks at places, which may be in any order.

        Blocks without a birth are in use from the beginning. Every snapshot has all `keys`, also with 0 bytes.
        """
        changes: list[tuple[float, Key, int]] = []
        for block in blocks:
            key = block.category, block.origin
            changes.append((-math.inf if block.birth is None else block.birth, key, block.num_bytes))
            if block.death is not None:
                changes.append((block.death, key, -block.num_bytes))
        changes.sort(key=itemgetter(0))
        held, total_bytes, num_applied = dict.fromkeys(keys, 0), 0, 0
        snapshots = []
        for place in sorted(places, key=attrgetter("moment")):
            while num_applied < len(changes) and changes[num_applied][0] <= place.moment:
                _, key, num_bytes = changes[num_applied]
                held[key] = held.get(key, 0) + num_bytes
                total_bytes += num_bytes
                num_applied += 1
            snapshots.append(Snapshot(place, held.copy(), total_bytes))
        return cls(snapshots)

    @property
    def peak(self) -> Snapshot:
        """First snapshot with the most bytes, of those inside of phases."""
        return max((snapshot for snapshot in self.snapshots if snapshot.place.phase is not None),
                   key=attrgetter("total_bytes"))

    def phase_peaks(self) -> dict[str, Snapshot]:
        """Return the first snapshot of each phase with the most bytes."""
        peaks: dict[str, Snapshot] = {}
        for snapshot in self.snapshots:
            phase = snapshot.place.phase
            if phase is not None and (phase not in peaks or snapshot.total_bytes > peaks[phase].total_bytes):
                peaks[phase] = snapshot
        return peaks

    def timeline(self) -> list[Snapshot]:
        """Return every n-th snapshot, so that there are at most 200, and the peaks of all phases."""
        stride = -(-len(self.snapshots) // MAX_TIMELINE_SNAPSHOTS)
        peaks = set(map(id, self.phase_peaks().values()))
        return [snapshot for number, snapshot in enumerate(self.snapshots)
                if number % stride == 0 or id(snapshot) in peaks]

    def rows(self, method: Literal["measured", "predicted"], begun: int | None = None) -> list[dict[str, Any]]:
        """Return rows of the table `memory`: composition at the peak, at each phase's peak, and over time.

        Moments of a measured curve are in ns; times are relative to `begun`, by default the first snapshot.
        """
        begun = self.snapshots[0].place.moment if begun is None else begun
        rows: list[dict[str, Any]] = []

        def add(kind: str, snapshot: Snapshot, number: int | None = None) -> None:
            moment, phase, layer, operator = snapshot.place
            time_s = (moment - begun) / 1e9 if number is not None and method == "measured" else None
            rows.extend({"kind": kind, "method": method, "phase": phase, "layer": layer, "operator": operator,
                         "moment": number, "time_s": time_s, "category": category, "origin": origin,
                         "bytes": float(num_bytes), "reserved_bytes": snapshot.reserved_bytes}
                        for (category, origin), num_bytes in snapshot.held.items()
                        if num_bytes or origin in (None, "tensors"))

        add("peak", self.peak)
        for snapshot in self.phase_peaks().values():
            add("phase_peak", snapshot)
        for number, snapshot in enumerate(self.timeline()):
            add("timeline", snapshot, number)
        return rows
