"""Tables of memory snapshots: lines that hold memory, streams and pools, and requests that failed."""

from typing import Any

import pandas as pd

from charact.views.html.elements.blocks import CASE
from charact.views.tables import format as fmt
from charact.views.tables import memory_text as words
from charact.views.tables.model import Column, Table, share_column, table

NO_REQUESTED = "the snapshot has no requested sizes"
_NO_TIMES = "the history has no times"


def no_time(row: Any) -> str:
    """Return why a snapshot has no time of its peak."""
    return str(row.history_reason) if isinstance(row.history_reason, str) else _NO_TIMES


def holders(rows: pd.DataFrame, caption: str, of: int | None = None) -> Table:
    """Build the table of rows of `snapshot_holders`; `of` is the number of all lines if there are more."""
    rows = rows.assign(line=[words.holder(row, short=False) for row in fmt.rows(rows)])
    columns = [
        CASE,
        Column("line", "Line", None, "first line outside of PyTorch's own files in the stack of the allocation",
               wide=True),
        Column("bytes", "Memory", fmt.num_bytes, "requested sizes of its blocks"),
        share_column("share_frac", "Share", "part of all allocated memory at that moment"),
        Column("num_blocks", "Blocks", fmt.number, "that it allocated"),
    ]  # fmt: skip
    note = f"The first {len(rows)} of {of:,} lines." if of is not None and of > len(rows) else ""
    return table(rows, caption, columns, note)


def pools(rows: pd.DataFrame, caption: str) -> Table:
    """Build the table of rows of `snapshot_pools`."""
    columns = [
        CASE, Column("stream", "Stream", None, "default, or its address", unbroken=True),
        Column("pool", "Pool", None, "default, or the two numbers of a private one, as of a CUDA graph", unbroken=True),
        Column("num_segments", "Segments", fmt.number, "that the allocator got from the driver"),
        Column("reserved_bytes", "Reserved", fmt.num_bytes, "sum of the segments' sizes"),
        Column("allocated_bytes", "Allocated", fmt.num_bytes, "sizes of allocated blocks, as rounded by the allocator"),
        Column("requested_bytes", "Requested", fmt.num_bytes, "sizes of the same blocks, as requested",
               lambda row: NO_REQUESTED),
        Column("awaiting_free_bytes", "Awaiting free", fmt.num_bytes, "freed, but maybe used by another stream"),
        Column("inactive_bytes", "Free", fmt.num_bytes, "blocks of segments that are free for reuse"),
        Column("largest_inactive_bytes", "Largest free block", fmt.num_bytes,
               "largest request that needs no new segment"),
        Column("inactive_frac", "Free share", fmt.share, "free / reserved", lambda row: "nothing reserved"),
    ]  # fmt: skip
    return table(rows, caption, columns)


def out_of_memory(rows: pd.DataFrame, caption: str) -> Table:
    """Build the table of rows of `snapshot_out_of_memory`."""
    lines = [words.holder(row, short=False) if isinstance(row.place, str) else None for row in fmt.rows(rows)]
    largest = ["; ".join(words.held_by(each) for each in row.holders) or None for row in fmt.rows(rows)]
    rows = rows.assign(line=pd.Series(lines, rows.index, dtype="object"),
                       largest=pd.Series(largest, rows.index, dtype="object"))
    columns = [
        CASE, Column("event_number", "Event", fmt.number, "its number in the history"),
        Column("time_s", "After", fmt.seconds, "time since the first event", lambda row: _NO_TIMES),
        Column("requested_bytes", "Requested", fmt.num_bytes, "that the allocator could not get"),
        Column("free_bytes", "Free on the device", fmt.num_bytes, "as the driver reported", lambda row: "not recorded"),
        Column("allocated_bytes", "Allocated", fmt.num_bytes, "at that time, as requested"),
        Column("reserved_bytes", "Reserved", fmt.num_bytes, "at that time", lambda row: "not known"),
        Column("line", "Line", None, "of the request", lambda row: "no frames recorded", wide=True),
        Column("largest", "Largest holders", None, "lines with most bytes at that time", lambda row: "nothing held",
               wide=True),
    ]  # fmt: skip
    return table(rows, caption, columns)


def history(rows: pd.DataFrame, caption: str) -> Table:
    """Build the table of rows of `snapshot_summary` that have a history: what it covers, and what it lacks."""
    columns = [
        CASE, Column("num_events", "Events", fmt.number, "of allocations, frees, segments and failed requests"),
        Column("duration_s", "Lasts", fmt.duration, "from the first event to the last", lambda row: _NO_TIMES),
        Column("before_bytes", "From before", fmt.num_bytes, "blocks that were allocated before the first event"),
        Column("num_before", "Blocks from before", fmt.number, "their number"),
        Column("before_at_peak_bytes", "Of them at the peak", fmt.num_bytes, "still allocated at the peak"),
        Column("num_frees_of_unknown", "Frees of blocks from before", fmt.number,
               "their allocations are older than the history, or were overwritten in it"),
        Column("num_frees_not_seen", "Blocks without a free", fmt.number, "allocated in the history, but free in the "
               "segments: they count as allocated until the end"),
    ]  # fmt: skip
    return table(rows, caption, columns)


def state(rows: pd.DataFrame, caption: str) -> Table:
    """Build the table of rows of `snapshot_summary`: the state when the snapshot was taken."""
    columns = [
        CASE,
        Column("reserved_bytes", "Reserved", fmt.num_bytes, "sum of the segments' sizes"),
        Column("allocated_bytes", "Allocated", fmt.num_bytes, "sizes of allocated blocks, as rounded by the allocator"),
        Column("requested_bytes", "Requested", fmt.num_bytes, "sizes of the same blocks, as requested",
               lambda row: NO_REQUESTED),
        Column("rounding_bytes", "Rounding", fmt.num_bytes, "allocated - requested", lambda row: NO_REQUESTED),
        Column("rounding_frac", "Rounding share", fmt.share, "rounding / allocated",
               lambda row: NO_REQUESTED if row.allocated_bytes else "nothing allocated"),
        Column("awaiting_free_bytes", "Awaiting free", fmt.num_bytes, "freed, but maybe used by another stream"),
        Column("inactive_bytes", "Free", fmt.num_bytes, "blocks of segments that are free for reuse"),
        Column("inactive_frac", "Free share", fmt.share, "free / reserved", lambda row: "nothing reserved"),
        Column("largest_inactive_bytes", "Largest free block", fmt.num_bytes,
               "largest request that needs no new segment"),
        Column("fragmentation_frac", "Fragmentation", fmt.share, "1 - largest free block / free: 0 if all free bytes "
               "are one block", lambda row: "nothing free"),
        Column("settings", "Settings", None, "of the allocator, from its environment variable",
               lambda row: "not set", wide=True),
    ]  # fmt: skip
    return table(rows, caption, columns)
