"""The section Collectives: how often ranks exchange data, how many bytes, and what it costs."""

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from charact.analysis.ranks.collectives import collective_summary
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.html.elements.blocks import CASE, PHASE, why_nothing
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, table
from charact.views.terminal.named_table import NamedTable

_LEAD = (
    "Numbers are per iteration of a rank. Exposed time is the time in which the host did nothing but wait, for the "
    "exchange or for a later rank; in an imported trace, the time in which the device computed nothing. Time in which "
    "an exchange and a computation ran together is overlapped, not exposed."
)
_UNSEEN = "the ranks did not wait for it alone"


def collectives(run: Run) -> Body:
    """Build the section: one table of all ranks."""
    found = collective_summary(run)
    if found.empty:
        return Body(lead=_LEAD, blocks=[Block(note=why_nothing(run, "collectives"))])
    columns = [
        CASE, PHASE, Column("operation", "Operation", unbroken=True),
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
    return Body(lead=_LEAD, blocks=[Block(table=table(found, "Collectives of each rank", columns))])


def _terminal(run: Run, case: Any) -> list[RenderableType]:
    """Return a table of a case's collectives; nothing if it has none."""
    found = collective_summary(run)
    rows = found[found["case"] == case["case"]]
    if rows.empty:
        return []
    drawn = NamedTable("collective", "calls", "bytes", "exposed", "for later ranks", "bus bandwidth")
    for row in fmt.rows(rows):
        cells = [fmt.number(row.num_calls), fmt.num_bytes(row.bytes), fmt.seconds(row.exposed_s),
                 fmt.seconds(row.late_s), fmt.byte_rate(row.bus_bytes_per_s)]
        drawn.add_row(Text(f"{row.operation} in {row.phase}"), *map(Text, cells))
    return [Group(Text("collectives of an iteration"), drawn)]


SECTION = Section("collectives", "Collectives", 95, collectives, ("collectives",), tables=("collectives",),
                  terminal=_terminal, points={
    "collectives": [
        ("Collectives", "PyTorch’s flight recorder: when each collective was called, in which group, and the sizes of "
         "its tensors. On gloo it does not record their ends: these are the ends of the Python calls that wait, or of "
         "the backward pass for DistributedDataParallel. When an exchange ended that the host did not wait for is not "
         "known, so the time that computation hid is n/a."),
    ]})
