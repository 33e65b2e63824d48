"""Conversion of a memory snapshot into cases of a record, one for each device: manifest entries and memory curves."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from charact.core.memory_curve import MemoryCurve, Place, Snapshot
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import (
    AllocatorPool,
    DroppedItems,
    Holder,
    MemoryPass,
    OutOfMemoryEvent,
    SnapshotPass,
)
from charact.record.schema import Rows
from charact.traces.events import readable
from charact.traces.reader import rank_in_name
from charact.traces.snapshots.allocator_replay import BEFORE, MOST_OOMS, Held, Moment, Replay, replay
from charact.traces.snapshots.memory_snapshots import NO_SITE, Block, Device, History, MemorySnapshot, Segment, Site

_MOST_HOLDERS, _MOST_OOM_HOLDERS = 100, 3
_MOST_FREE_BYTES = 1 << 53
_NO_HISTORY = ("the snapshot has no history: call torch.cuda.memory._record_memory_history() before the program "
               "allocates memory")
_NO_FRAMES = "no frames recorded"
_BEFORE = "allocated before the history"
_CONTRADICTION = ("the history allocates more than the segments hold: take the snapshot before the recording ends, and "
                  "record all actions")


def snapshot_cases(snapshot: MemorySnapshot, name: str) -> list[tuple[CaseEntry, dict[str, Rows]]]:
    """Return a case for each device of a snapshot, with its table `memory`."""
    several = len(snapshot.devices) > 1
    return [_case(snapshot, index, device, f"{name}-cuda{index}" if several else name)
            for index, device in snapshot.devices.items()]


def _case(snapshot: MemorySnapshot, index: int, device: Device, name: str) -> tuple[CaseEntry, dict[str, Rows]]:
    # PyTorch's devices of AMD are named cuda, too.
    entry = CaseEntry(name, "ok", name, precision="as written", device="cuda", data="as written",
                      source=readable(snapshot.path), rank=rank_in_name(snapshot.path))
    facts = SnapshotPass("ok", device_index=index, settings=snapshot.settings, pools=_pools(device.segments),
                         dropped=[DroppedItems(what, reason, number)
                                  for (what, reason), number in device.dropped.items()])
    entry.passes["snapshot"] = facts
    rows: Rows = []
    if len(device.history):
        found = replay(device)
        rows = _add_history(facts, device.history, found, snapshot.sites)
        peak = found.reserved_peak
        entry.passes["memory"] = MemoryPass("ok", peak_bytes=found.peak.allocated_bytes,
                                            reserved_peak_bytes=None if peak is None else peak.reserved_bytes)
    else:
        facts.history_reason = _NO_HISTORY
        held = _held(block for segment in device.segments for block in segment.blocks if block.state == "allocated")
        facts.update(num_holders=len(held), holders=_holders(held[:_MOST_HOLDERS], snapshot.sites))
        entry.passes["memory"] = MemoryPass("skipped", _NO_HISTORY)
    return entry, {"memory": rows}


def _add_history(facts: SnapshotPass, history: History, found: Replay, sites: Sequence[Site]) -> Rows:
    """Add what the history shows to the facts, and return the rows of the curve."""
    at_peak = found.holders[found.peak.position]
    facts.update(
        num_events=len(history), duration_s=_time_s(history, len(history) - 1),
        peak_s=_time_s(history, found.peak.position), peak_event=found.peak.position + 1,
        reserved_at_peak_bytes=found.peak.reserved_bytes,
        reserved_reason=_CONTRADICTION if found.reserved_peak is None else None,
        before_bytes=found.before.num_bytes, num_before=found.before.num_blocks,
        before_at_peak_bytes=found.before_at_peak.num_bytes, num_before_at_peak=found.before_at_peak.num_blocks,
        num_frees_of_unknown=found.num_frees_of_unknown, num_frees_not_seen=found.num_frees_not_seen,
        num_holders=len(at_peak), holders=_holders(at_peak[:_MOST_HOLDERS], sites),
        num_out_of_memory=len(found.at_ooms),
        out_of_memory=[_out_of_memory(history, moment, found.holders[moment.position], sites)
                       for moment in found.at_ooms[:MOST_OOMS]])
    return _rows(history, found)


def _rows(history: History, found: Replay) -> Rows:
    """Return the rows of the curve; of moments at the same time, that with the most allocated bytes."""
    fullest: dict[int, Moment] = {}
    for moment in found.curve:
        time_s = _time_s(history, moment.position)
        at = moment.position if time_s is None else round(1e9 * time_s)
        if at not in fullest or moment.allocated_bytes > fullest[at].allocated_bytes:
            fullest[at] = moment
    curve = MemoryCurve([
        Snapshot(Place(at, "other"), {("unknown", None): moment.allocated_bytes}, moment.allocated_bytes,
                 moment.reserved_bytes) for at, moment in fullest.items()])
    rows = curve.rows("measured")
    return rows if history.times_us else [row | {"time_s": None} for row in rows]


def _time_s(history: History, position: int) -> float | None:
    """Return the time of an event since the first one; None without times."""
    times_us = history.times_us
    return (times_us[max(position, 0)] - times_us[0]) / 1e6 if times_us else None


def _out_of_memory(history: History, moment: Moment, held: Sequence[Held], sites: Sequence[Site]) -> OutOfMemoryEvent:
    free_bytes, site = history.addresses[moment.position], history.sites[moment.position]
    place, function = (None, None) if site == NO_SITE else sites[site]
    return OutOfMemoryEvent(
        time_s=_time_s(history, moment.position), event=moment.position + 1,
        requested_bytes=history.sizes[moment.position],
        free_bytes=free_bytes if free_bytes <= _MOST_FREE_BYTES else None, allocated_bytes=moment.allocated_bytes,
        reserved_bytes=moment.reserved_bytes, place=place, function=function,
        holders=_holders(held[:_MOST_OOM_HOLDERS], sites))


def _holders(held: Sequence[Held], sites: Sequence[Site]) -> list[Holder]:
    found = []
    for site, num_bytes, num_blocks in held:
        if site in (NO_SITE, BEFORE):
            found.append(Holder(reason=_BEFORE if site == BEFORE else _NO_FRAMES, bytes=num_bytes,
                                num_blocks=num_blocks))
        else:
            place, function = sites[site]
            found.append(Holder(place=place, function=function, bytes=num_bytes, num_blocks=num_blocks))
    return found


def _held(blocks: Iterator[Block]) -> list[Held]:
    """Return allocated blocks by site, those with most bytes first."""
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for block in blocks:
        of_site = sums[block.site]
        of_site[0] += block.num_bytes if block.requested_bytes is None else block.requested_bytes
        of_site[1] += 1
    return sorted((Held(site, num_bytes, num_blocks) for site, (num_bytes, num_blocks) in sums.items()),
                  key=lambda each: (-each.num_bytes, each.site))


def _pools(segments: Sequence[Segment]) -> list[AllocatorPool]:
    """Return the state of each stream and memory pool, those with most reserved bytes first."""
    by_pool: dict[tuple[str, str], list[Segment]] = defaultdict(list)
    for segment in segments:
        by_pool[segment.stream, segment.pool].append(segment)
    pools = []
    for (stream, pool), members in by_pool.items():
        blocks = [block for segment in members for block in segment.blocks]
        of_state: dict[str, list[Block]] = {
            state: [block for block in blocks if block.state == state]
            for state in ("allocated", "awaiting_free", "inactive")}
        requested: list[Any] = [block.requested_bytes for block in of_state["allocated"]]
        allocated, awaiting, inactive = ([block.num_bytes for block in of_state[state]] for state in of_state)
        pools.append(AllocatorPool(
            stream=stream, pool=pool, num_segments=len(members),
            reserved_bytes=sum(segment.num_bytes for segment in members), num_blocks=len(allocated),
            allocated_bytes=sum(allocated), requested_bytes=None if None in requested else sum(requested),
            awaiting_free_bytes=sum(awaiting), inactive_bytes=sum(inactive),
            largest_inactive_bytes=max(inactive, default=0)))
    return sorted(pools, key=lambda each: -each.reserved_bytes)
