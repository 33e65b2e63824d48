"""The section Memory snapshot: memory over the history, what holds it at the peak, and the state of the allocator."""

from charact.analysis.memory.snapshots import (
    snapshot_curve,
    snapshot_holders,
    snapshot_out_of_memory,
    snapshot_pools,
    snapshot_summary,
)
from charact.record.reader import Run
from charact.views.document import Block, Body
from charact.views.figures import memory as figures
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables import memory_text as words
from charact.views.tables import palette
from charact.views.tables import snapshot_tables as tables

_LEAD = ("What PyTorch’s caching allocator of the GPU held, without memory that libraries take for themselves. Sizes "
         "over time are those that the program requested.")


def _html(run: Run) -> Body:
    summary, failed = snapshot_summary(run), snapshot_out_of_memory(run)
    blocks = [block for row in fmt.rows(summary) for block in _of_case(run, row)]
    if len(failed):
        note = "" if len(failed) == summary["num_out_of_memory"].sum() else "The first 20 requests of each case."
        blocks.append(Block(title="Out of memory", table=tables.out_of_memory(failed, "Requests that failed"),
                            note=note))
    with_history = summary[summary["num_events"] > 0]
    blocks += [
        Block(title="State at the snapshot", table=tables.state(summary, "State of the allocator at the snapshot")),
        Block(table=tables.pools(snapshot_pools(run), "State by stream and pool"), folded=True),
        *([Block(table=tables.history(with_history, "What the history covers"), folded=True)]
          if len(with_history) else [])]
    return Body(lead=_LEAD, blocks=blocks)


def _of_case(run: Run, row: object) -> list[Block]:
    """Return the curve of a case, or why there is none, and the lines that hold memory."""
    case = str(getattr(row, "case", ""))
    curve, holders = snapshot_curve(run), snapshot_holders(run)
    curve, holders = curve[curve["case"] == case], holders[holders["case"] == case]
    num_lines = run.entry(case).passes.snapshot.num_holders
    at = "at the snapshot" if curve.empty else "at the peak"
    held = Block(title=f"Lines that hold memory {at}: {case}", case=case,
                 table=tables.holders(holders, f"Memory by line {at} of {case}", of=num_lines))
    title = f"Memory over time: {case}"
    if curve.empty or not curve["bytes"].any():
        reason = "the history allocates nothing" if len(curve) else words.no_history(row)
        return [Block(title=title, case=case, note=fmt.missing(reason)), held]
    drawn = figures.allocator_curve(f"Memory over the history of {case}", curve)
    return [Block(title=title, case=case, figures=[drawn],
                  legend=[("allocated", palette.CATEGORIES["unknown"])], note=words.snapshot_note(row)), held]


SECTION = Section("snapshot", "Memory snapshot", 165, _html, ("snapshot",), points={"snapshot": [
    ("Allocated over time", "replay of the history: a block counts from its allocation to the request to free it, with "
     "the size that the program requested. Blocks from before the history are known from their frees, and from the "
     "segments. The curve has the fullest moment of each 190th part of the history."),
    ("Reserved over time", "sizes of the segments at the snapshot, without those that the history adds later, and with "
     "those that it frees later."),
    ("State", "sizes and states of the blocks of all segments when the snapshot was taken. Allocated sizes are rounded "
     "by the allocator; rounding is the difference to the requested ones."),
    ("Fragmentation", "1 - largest free block / all free bytes of segments, at the snapshot. A free block serves "
     "requests of its own stream and pool only."),
    ("Lines", "the first frame outside of PyTorch’s own files in the stack that the allocator recorded; without one, "
     "the innermost frame of Python."),
]})
