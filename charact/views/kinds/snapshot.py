"""Imported memory snapshots of PyTorch's allocator: a case for each device."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.common.script_attribution import dropped
from charact.analysis.memory.snapshots import (
    snapshot_holders,
    snapshot_out_of_memory,
    snapshot_pools,
    snapshot_summary,
)
from charact.record.reader import Run
from charact.views.case_kind import CaseKind, CasePart, Overview, in_one_table, takes
from charact.views.document import Card, Item, Line, Lines, Number, Part, ShareBar
from charact.views.html.elements.blocks import CASE, STATUS
from charact.views.tables import format as fmt
from charact.views.tables import memory_text as words
from charact.views.tables import palette
from charact.views.tables import snapshot_tables as tables
from charact.views.tables.model import Column, Table, table, without_columns

_NUM_LINES = 6
"""Number of lines of a card's bar; the others are one part."""
_NUM_ROWS = 10


def _overview(run: Run, cases: pd.DataFrame) -> Overview:
    summary, holders = snapshot_summary(run), snapshot_holders(run)
    cards = [_card(row, holders[holders["case"] == row.case]) for row in fmt.rows(summary)]
    return Overview(cards, _table(summary))


def _card(row: Any, holders: pd.DataFrame) -> Card:
    """Return the card of a snapshot: its peak, or the state without a history, with the lines that hold memory."""
    if pd.isna(row.peak_bytes):
        headline = Number("allocated at the snapshot", fmt.num_bytes(row.allocated_bytes))
        details = [f"peak {fmt.missing(row.history_reason)}"]
    else:
        headline = Number("at the peak, allocated", fmt.num_bytes(row.peak_bytes))
        details = [words.peak_time(row), f"{fmt.num_bytes(row.reserved_at_peak_bytes, row.reserved_reason)} reserved"]
    numbers = [
        Number("reserved at the snapshot", fmt.num_bytes(row.reserved_bytes)),
        Number("of it free", fmt.share(row.inactive_frac, "nothing reserved")),
        Number("largest free block", fmt.num_bytes(row.largest_inactive_bytes)),
        Number("rounding", fmt.num_bytes(row.rounding_bytes, tables.NO_REQUESTED)),
    ]
    return Card(row.case, headline=headline, details=details, numbers=numbers, warnings=words.snapshot_warnings(row),
                bars=_bars(holders))


def _bars(holders: pd.DataFrame) -> list[ShareBar]:
    """Return the bar of the lines that hold most memory."""
    known = holders[holders["share_frac"] > 0]
    first = known.head(_NUM_LINES)
    parts = [Part(words.holder(row), row.share_frac, palette.CASES[number], fmt.num_bytes(row.bytes))
             for number, row in enumerate(fmt.rows(first))]
    rest_frac = 1 - first["share_frac"].sum()
    if parts and rest_frac > 1e-9:
        whole = first["bytes"].iloc[0] / first["share_frac"].iloc[0]
        parts.append(Part("other lines", rest_frac, palette.CATEGORIES["unknown"], fmt.num_bytes(rest_frac * whole)))
    return [ShareBar("Memory by line", parts)] if parts else []


def _table(rows: pd.DataFrame, *more: Column) -> Table:
    """Build the table of headline numbers; `more` columns follow the case."""
    columns = [
        CASE, *more, STATUS,
        Column("peak_bytes", "Peak allocated", fmt.num_bytes, "largest sum of requested sizes of blocks that are not "
               "freed, by replay of the history", lambda row: row.history_reason),
        Column("peak_s", "After", fmt.seconds, "time of the peak since the first event", tables.no_time),
        Column("reserved_peak_bytes", "Peak reserved", fmt.num_bytes, "largest sum of the segments' sizes",
               lambda row: row.reserved_reason or row.history_reason),
        Column("allocated_bytes", "Allocated", fmt.num_bytes, "at the snapshot, as rounded by the allocator"),
        Column("reserved_bytes", "Reserved", fmt.num_bytes, "at the snapshot"),
        Column("inactive_frac", "Free", fmt.share, "free bytes in segments / reserved bytes, at the snapshot",
               lambda row: "nothing reserved"),
        Column("num_out_of_memory", "Out of memory", fmt.number, "requests that failed",
               is_fault=lambda row: bool(row.num_out_of_memory > 0)),
    ]  # fmt: skip
    return table(rows, "Peak and state of each snapshot", columns)


def _cautions(run: Run, case: str) -> list[str]:
    """Return what of the snapshot was left out."""
    lost = dropped(run).query("case == @case")
    losses = [f"{fmt.number(row.num_dropped)} {row.what} ({row.reason})" for row in fmt.rows(lost)]
    return [f"Left out: {', '.join(losses)}"] if losses else []


def _details(run: Run, case: str) -> Sequence[Item]:
    """Return the lines that hold most memory, and the requests that failed."""
    held, failed = snapshot_holders(run), snapshot_out_of_memory(run)
    held, failed = held[held["case"] == case], failed[failed["case"] == case]
    lines = without_columns(tables.holders(held.head(_NUM_ROWS), "Memory by line", of=len(held)), ["case"])
    failures = [Line((words.failed_request(row), "failure")) for row in fmt.rows(failed.head(_NUM_ROWS))]
    return [*([lines] if len(held) else []), *([Lines(failures)] if failures else [])]


def _answer(run: Run, cases: pd.DataFrame) -> str:
    """Return the range of peaks, and for a single snapshot the line that holds most memory at it."""
    rows, holders = snapshot_summary(run), snapshot_holders(run)
    has_peak = rows["peak_bytes"].notna().any()
    column, verbs = ("peak_bytes", ("peaks at", "peak at")) if has_peak else ("allocated_bytes", ("holds", "hold"))
    sentence = takes(rows, column, fmt.num_bytes, "of allocated memory", verbs)
    largest = next(fmt.rows(holders), None)
    if len(rows) != 1 or largest is None or pd.isna(largest.place):
        return sentence
    return f"{sentence}; {fmt.share(largest.share_frac)} of it is from {words.holder(largest)}"


_STATE = ("num_segments", "reserved_bytes", "allocated_bytes", "requested_bytes", "awaiting_free_bytes",
          "inactive_bytes", "largest_inactive_bytes", "num_blocks")
_PARTS = {
    "headline": CasePart(snapshot_summary, (
        "peak_bytes", "peak_s", "peak_event_number", "reserved_at_peak_bytes", "reserved_peak_bytes", "allocated_bytes",
        "reserved_bytes", "inactive_frac"), is_list=False),
    "history": CasePart(snapshot_summary, (
        "num_events", "duration_s", "before_bytes", "num_before", "before_at_peak_bytes", "num_before_at_peak",
        "num_frees_of_unknown", "num_frees_not_seen", "num_out_of_memory", "history_reason", "reserved_reason"),
        is_list=False),
    "state": CasePart(snapshot_summary, (
        "device_number", "settings", *_STATE, "rounding_bytes", "rounding_frac", "inactive_frac", "fragmentation_frac"),
        is_list=False),
    "holders": CasePart(snapshot_holders, ("place", "function", "reason", "bytes", "share_frac", "num_blocks")),
    "pools": CasePart(snapshot_pools, ("stream", "pool", *_STATE, "inactive_frac"), whole=True),
    "out_of_memory": CasePart(snapshot_out_of_memory, (
        "event_number", "time_s", "requested_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "place",
        "function"), whole=True),
}  # fmt: skip
_FIRST = ("peak_bytes", "peak_s", "reserved_peak_bytes", "reserved_bytes", "inactive_frac")

KIND = CaseKind("snapshot", 45, _overview, snapshot_summary, in_one_table(_table), _FIRST, _answer, cautions=_cautions,
                details=_details, parts=_PARTS)
