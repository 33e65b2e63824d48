"""Imported memory snapshots of PyTorch's allocator: state, peak, memory over time, and what holds it."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.row_order import in_order
from charact.record.manifest_passes import AllocatorPool, Holder, SnapshotPass
from charact.record.reader import Run

_OF_PASS = ["settings", "num_events", "duration_s", "peak_s", "reserved_at_peak_bytes",
            "reserved_reason", "before_bytes", "num_before", "before_at_peak_bytes", "num_before_at_peak",
            "num_frees_of_unknown", "num_frees_not_seen", "num_out_of_memory", "history_reason"]
_OF_STATE = ["reserved_bytes", "allocated_bytes", "requested_bytes", "awaiting_free_bytes", "inactive_bytes",
             "largest_inactive_bytes", "num_segments", "num_blocks"]
_TEXTS = {"case", "settings", "reserved_reason", "history_reason", "status", "reason"}


@memoize
def snapshot_summary(run: Run) -> pd.DataFrame:
    """Return one row for each imported memory snapshot of a device.

    Columns: case; status; reason; peak_bytes, the most bytes that the program requested and had not freed, by a replay
    of the history (null without one: history_reason); peak_s since the history's first event (null without times);
    peak_event_number, from 1 (0: before the first event); reserved_at_peak_bytes; reserved_peak_bytes, the most
    reserved bytes (both null with a reserved_reason); before_bytes and num_before, of blocks that were allocated before
    the history; before_at_peak_bytes and num_before_at_peak, those of them at the peak; num_events; duration_s from the
    first event to the last; num_frees_of_unknown, frees of blocks from before the history; num_frees_not_seen, blocks
    whose free the history lacks; num_out_of_memory; device_number; settings of the allocator.

    When the snapshot was taken: reserved_bytes and num_segments; allocated_bytes and num_blocks, sizes as rounded by
    the allocator; requested_bytes, the same as requested (null if the snapshot lacks them); rounding_bytes = allocated
    - requested; rounding_frac = rounding / allocated; awaiting_free_bytes, freed, but maybe used by another stream;
    inactive_bytes, free in segments; inactive_frac = inactive / reserved; largest_inactive_bytes, the largest free
    block; fragmentation_frac = 1 - largest_inactive / inactive (0: all free bytes are one block).
    """
    rows = []
    for entry in run.entries_with("snapshot"):
        facts, memory = entry.passes.snapshot, entry.passes.memory
        rows.append([
            entry.case, entry.status, entry.reason, memory.peak_bytes, memory.reserved_peak_bytes, facts.device_index,
            facts.peak_event, *(getattr(facts, name) for name in _OF_PASS), *_state(facts.pools)])
    columns = ["case", "status", "reason", "peak_bytes", "reserved_peak_bytes", "device_number", "peak_event_number",
               *_OF_PASS, *_OF_STATE]
    summary = pd.DataFrame(rows, columns=columns)
    summary = summary.astype({name: "str" if name == "case" else "object" if name in _TEXTS else "float64"
                              for name in columns})
    summary["rounding_bytes"] = summary["allocated_bytes"] - summary["requested_bytes"]
    summary["rounding_frac"] = _ratio(summary, "rounding_bytes", "allocated_bytes")
    summary["inactive_frac"] = _ratio(summary, "inactive_bytes", "reserved_bytes")
    summary["fragmentation_frac"] = 1 - _ratio(summary, "largest_inactive_bytes", "inactive_bytes")
    return summary


def _ratio(rows: pd.DataFrame, part: str, whole: str) -> "pd.Series[float]":
    return rows[part] / rows[whole].where(rows[whole] > 0)


def _state(pools: list[AllocatorPool]) -> list[float | None]:
    requested = [pool.requested_bytes for pool in pools]
    return [sum(pool.reserved_bytes for pool in pools), sum(pool.allocated_bytes for pool in pools),
            None if None in requested else sum(each for each in requested if each is not None),
            sum(pool.awaiting_free_bytes for pool in pools), sum(pool.inactive_bytes for pool in pools),
            max((pool.largest_inactive_bytes for pool in pools), default=0.0),
            sum(pool.num_segments for pool in pools), sum(pool.num_blocks for pool in pools)]


@memoize
def snapshot_holders(run: Run) -> pd.DataFrame:
    """Return what holds memory at the peak of each snapshot, by line of the program; most bytes first.

    Without a history, it is what holds memory when the snapshot was taken. Columns: case; place, as file:line, the
    first line outside of PyTorch's own files, and its function (both null with a reason); bytes that were requested;
    share_frac of all such bytes; num_blocks. The rows of a case sum to its peak, unless it has more than 100 lines.
    """
    rows: list[list[Any]] = []
    for entry in run.entries_with("snapshot"):
        facts = entry.passes.snapshot
        total = _total_bytes(facts, entry.passes.memory.peak_bytes)
        rows += [[entry.case, each.place, each.function, each.reason, each.bytes,
                  each.bytes / total if total else None, each.num_blocks] for each in facts.holders]
    columns = ["case", "place", "function", "reason", "bytes", "share_frac", "num_blocks"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype({"case": "str", "bytes": "float64", "share_frac": "float64", "num_blocks": "float64"})


def _total_bytes(facts: SnapshotPass, peak_bytes: float | None) -> float:
    if peak_bytes is not None:
        return peak_bytes
    return sum(pool.allocated_bytes if pool.requested_bytes is None else pool.requested_bytes for pool in facts.pools)


def snapshot_pools(run: Run) -> pd.DataFrame:
    """Return the state of each stream and memory pool when the snapshot was taken; most reserved bytes first.

    Columns: case; stream, default or its address; pool, default or the two numbers of a private one, as of a CUDA
    graph; the others are those of the state in `snapshot_summary`.
    """
    rows = [[entry.case, pool.stream, pool.pool, *_state([pool])]
            for entry in run.entries_with("snapshot") for pool in entry.passes.snapshot.pools]
    frame = pd.DataFrame(rows, columns=["case", "stream", "pool", *_OF_STATE])
    frame = frame.astype({"case": "str"} | dict.fromkeys(_OF_STATE, "float64"))
    frame["inactive_frac"] = _ratio(frame, "inactive_bytes", "reserved_bytes")
    return frame


def snapshot_out_of_memory(run: Run) -> pd.DataFrame:
    """Return the requests of each snapshot that the allocator could not fulfil, at most 20, in order of time.

    Columns: case; event_number, its position in the history, from 1; time_s since the first event (null without times);
    requested_bytes; free_bytes, as the driver reported (null if it did not); allocated_bytes and reserved_bytes at that
    time; place and function of the request (null without frames); holders, the lines that held most bytes, each with
    its bytes and blocks.
    """
    rows = [[entry.case, each.event, each.time_s, each.requested_bytes, each.free_bytes, each.allocated_bytes,
             each.reserved_bytes, each.place, each.function, _in_brief(each.holders)]
            for entry in run.entries_with("snapshot") for each in entry.passes.snapshot.out_of_memory]
    numbers = ["event_number", "time_s", "requested_bytes", "free_bytes", "allocated_bytes", "reserved_bytes"]
    frame = pd.DataFrame(rows, columns=["case", *numbers, "place", "function", "holders"])
    return frame.astype({"case": "str"} | dict.fromkeys(numbers, "float64"))


def _in_brief(holders: Iterable[Holder]) -> list[dict[str, Any]]:
    return [{"place": each.place, "function": each.function, "reason": each.reason, "bytes": each.bytes,
             "num_blocks": each.num_blocks} for each in holders]


def snapshot_curve(run: Run) -> pd.DataFrame:
    """Return allocated and reserved bytes over the history of each snapshot, in order of time.

    Columns: case; moment, an index from 0; time_s since the first event (null without times); bytes, allocated;
    reserved_bytes (null if not known). At most 193 moments: of each 190th part of the history, the one with the most
    allocated bytes.
    """
    cases = {entry.case for entry in run.entries_with("snapshot")}
    rows = run.memory
    rows = rows[(rows["kind"] == "timeline") & rows["case"].isin(cases)]
    columns = ["case", "moment", "time_s", "category", "bytes", "reserved_bytes"]
    return in_order(rows[columns].sort_values("moment", kind="stable"), run, "case")
