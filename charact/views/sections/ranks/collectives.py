"""The section Collectives: how often ranks exchange data, how many bytes, and what it costs."""

from charact.analysis.ranks.collectives import collective_summary
from charact.record.reader import Run
from charact.views.document import Block, Body, Item, Line, Lines, Numbers
from charact.views.html.elements.blocks import CASE, PHASE, why_nothing
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, table

_LEAD = (
    "Numbers are per iteration of a rank. Exposed time is the time in which the host did nothing but wait, for the "
    "exchange or for a later rank; in an imported trace, the time in which the device computed nothing. Time in which "
    "an exchange and a computation ran together is overlapped, not exposed."
)
_UNSEEN = "the ranks did not wait for it alone"


_COLUMNS = [
    Column("operation", "Operation", unbroken=True),
    Column("group", "Group", meaning="process group"),
    Column("group_size", "Ranks", fmt.number, "in the group", lambda row: "not recorded"),
    Column("num_calls", "Calls", fmt.number, "per iteration"),
    Column("bytes", "Bytes", fmt.num_bytes, "the larger of inputs and outputs", lambda row: "type not known"),
    Column("exposed_s", "Exposed", fmt.seconds, "nothing else ran", lambda row: "the device waits"),
    Column("overlapped_s", "Overlapped", fmt.seconds, "the device computed, too", lambda row: "not recorded"),
    Column("late_s", "For later ranks", fmt.seconds, "part of it that is waiting for the rank that comes last",
           lambda row: _UNSEEN),
    Column("bus_bytes_per_s", "Bus bandwidth", fmt.byte_rate,
           "of the transfer, at least: concurrent transfers share the link", lambda row: _UNSEEN),
    Column("of_best_frac", "Of best measured", fmt.share, "bus bandwidth over that of charact doctor --ceilings",
           lambda row: row.of_best_reason),
    Column("device_s", "Device", fmt.seconds, "on the device", lambda row: "timed on the host"),
]  # fmt: skip
_FIRST = ("num_calls", "bytes", "exposed_s", "late_s", "bus_bytes_per_s")
"""Columns of a case's summary."""


def _html(run: Run) -> Body:
    rows = collective_summary(run)
    if rows.empty:
        return Body(lead=_LEAD, blocks=[Block(note=why_nothing(run, "collectives"))])
    return Body(lead=_LEAD, blocks=[Block(table=table(rows, "Collectives of each rank", [CASE, PHASE, *_COLUMNS]))])


def _summary(run: Run, case: str) -> list[Item]:
    """Return a table of a case's collectives; nothing if it has none."""
    rows = collective_summary(run).query("case == @case")
    if rows.empty:
        return []
    named = rows.assign(operation=rows["operation"] + " in " + rows["phase"])
    return [Lines([Line("collectives of an iteration"), Numbers(table(named, "", _COLUMNS), _FIRST, strong=False)])]


SECTION = Section("collectives", "Collectives", 95, _html, ("collectives",), tables=("collectives",),
                  summary=_summary, points={
    "collectives": [
        ("Collectives", "PyTorch’s flight recorder: when each collective was called, in which group, and the sizes of "
         "its tensors. On gloo it does not record their ends: these are the ends of the Python calls that wait, or of "
         "the backward pass for DistributedDataParallel. When an exchange ended that the host did not wait for is not "
         "known, so the time that computation hid is n/a."),
    ]})
