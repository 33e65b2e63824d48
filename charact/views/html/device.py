"""The sections of the device: kernels and counters."""

from typing import Any

from charact import analysis
from charact.store import Run
from charact.views import format as fmt
from charact.views.html.blocks import CASE, Block, Body, missing_cases, why_nothing
from charact.views.html.tables import Column, share_column, table, top

_NUM_TOP = 25
_NO_KERNELS = ("Memcpy", "Memset")
_TIMED_ITERATIONS = "Taken before and after the measured iterations of the timing pass, which costs them nothing."
_OF_TRACE = "How each device spent the time from its first kernel, copy or fill in the trace to its last."
_OWN_ITERATIONS = "Taken before and after iterations that follow those of the timing: what is counted is of them alone."


def kernels(run: Run) -> Body:
    """The longest kernels of each case."""
    rows, note = top(analysis.top_kernels(run), _NUM_TOP)
    if rows.empty:
        return Body(blocks=[Block(note=why_nothing(run, "kernels"))])
    columns = [
        CASE, Column("kernel", "Kernel"), Column("num_calls", "Launches", fmt.number, "per iteration"),
        Column("device_s", "Time", fmt.seconds, "on the device, per iteration, under the profiler"),
        share_column("share_frac", "Share", "part of the device time of the case's iteration"),
        Column("occupancy_frac", "Occupancy", fmt.share, "estimated from launch geometry, not counted",
               lambda row: "a copy or fill" if row.kernel.startswith(_NO_KERNELS) else "not in the trace"),
    ]  # fmt: skip
    return Body(
        lead="What ran on the GPU, longest first. Launch geometries are taken together; the table kernels has them.",
        blocks=[Block(table=table(rows, "Kernels by time", columns, note)),
                *missing_cases(run, "kernels", rows["case"])],
    )  # fmt: skip


def has_counters(run: Run) -> bool:
    """Whether there are counters, or were to be: the timing pass of a workload takes some."""
    return len(run.counters) > 0 or ("timing" in analysis.passes_taken(run) and not analysis.is_watched(run))


def counters(run: Run) -> Body:
    """Counters over a pass: what the machine did while the iterations ran."""
    name, lead = ("counters", _OWN_ITERATIONS) if analysis.is_watched(run) else ("timing", _TIMED_ITERATIONS)
    if analysis.is_imported(run):
        lead = _OF_TRACE
    rows = analysis.counter_values(run)
    if rows.empty:
        return Body(blocks=[Block(note=why_nothing(run, name))])
    rows = rows.assign(shown=[_in_words(row) for row in rows.itertuples()])
    rows["counter"] = rows["counter"].str.removeprefix("num_").str.replace("_(bytes|frac|s)$", "", regex=True)
    rows["counter"] = rows["counter"].str.replace("_", " ")
    columns = [CASE, Column("source", "Source"), Column("device", "Device"), Column("counter", "Counter"),
               Column("shown", "Value")]  # fmt: skip
    return Body(
        lead=lead,
        blocks=[Block(folded=not analysis.is_imported(run), table=table(rows, "Counters by case", columns)),
                *missing_cases(run, name, rows["case"])],
    )  # fmt: skip


def _in_words(row: Any) -> str:
    if row.counter.endswith("_bytes"):
        return fmt.num_bytes(row.value)
    if row.counter.endswith("_s"):
        return fmt.seconds(row.value)
    return fmt.share(row.value) if row.counter.endswith("_frac") else fmt.number(row.value)
