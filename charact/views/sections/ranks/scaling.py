"""The section Scaling: how much of the ranks' number becomes speed."""

from typing import Any

from charact.analysis.ranks.scaling import scaling
from charact.record.reader import Run
from charact.views.document import Block, Body, Item, verdict_lines
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, table

_LEAD = (
    "Weak scaling: each rank has the batch of the single process; the efficiency is the single process’s time over "
    "that of the ranks. Strong scaling: all ranks together have its batch; the efficiency is its time over the ranks’ "
    "time and number. An iteration of the ranks lasts as long as that of the slowest. All processes have the same "
    "number of threads. The causes of the lost time are those of the mean rank. Imbalance: it waits for a rank that is "
    "later. Exposed communication: it waits for the exchange itself. Slower compute: its other time minus that of the "
    "single process; a negative number is a gain. With the rest, they sum to the lost time."
)


_CAUSES = (
    ("imbalance_s", "Imbalance", "the mean rank waits for a later one"),
    ("exposed_s", "Exposed communication", "the mean rank waits for the exchange itself"),
    ("slower_compute_s", "Slower compute", "the mean rank’s other time against the single process"),
    ("rest_s", "Rest", "slowest against mean rank"),
)
"""Columns with the causes of the lost time, their titles and meanings."""


def _html(run: Run) -> Body:
    def why(row: Any) -> str:
        return str(row.reason)

    def why_no_cause(row: Any) -> str:
        return str(row.cause_reason if isinstance(row.cause_reason, str) else row.reason)

    rows = scaling(run)
    rows = rows.assign(interval=[_interval(row) for row in fmt.rows(rows)], name=[_name(row) for row in fmt.rows(rows)])
    columns = [
        Column("name", "Case", unbroken=True), Column("kind", "Scaling"), Column("num_ranks", "Ranks", fmt.number),
        Column("batch_size", "Batch", fmt.number, "of each rank"),
        Column("global_batch_size", "In all", fmt.number, "batch of all ranks"),
        Column("base_s", "One process", fmt.seconds, "median iteration", why),
        Column("time_s", "Ranks", fmt.seconds, "median iteration of the slowest rank"),
        Column("samples_per_s", "Samples/s", fmt.number, "of all ranks"),
        Column("efficiency", "Efficiency", fmt.share, "1 if nothing is lost", why),
        Column("interval", "95 % interval", meaning="of the efficiency, from the iterations of this run"),
        Column("lost_s", "Lost", fmt.seconds, "time above that of an efficiency of 1", why),
        *(Column(name, title, fmt.seconds, meaning, why_no_cause) for name, title, meaning in _CAUSES),
        Column("phase", "Mostly in", meaning="phase with the largest difference", reason=why),
        Column("phase_lost_s", "There", fmt.seconds, "difference in that phase", why),
    ]  # fmt: skip
    return Body(lead=_LEAD, blocks=[Block(table=table(rows, "Scaling efficiency", columns))])


def _name(row: Any) -> str:
    attention = f", {row.attention} attention" if isinstance(row.attention, str) else ""
    return f"{row.workload}, {row.input_size}, {row.mode}, {row.precision}{attention}, {row.parallel}"


def _interval(row: Any) -> str:
    if fmt.absent(row.low):
        return fmt.missing(row.reason if isinstance(row.reason, str) else "fewer than 6 iterations")
    return f"{fmt.share(row.low)} to {fmt.share(row.high)}"


def _summary(run: Run, case: str) -> list[Item]:
    """Return all efficiencies, once for the first case."""
    if case != run.entries[0].case:
        return []
    return [verdict_lines(f"{row.kind} scaling, {row.parallel}, {row.num_ranks} ranks",
                          f"{fmt.share(row.efficiency)} ({_interval(row)})",
                          [f"{_name(row)}, batch {row.batch_size} per rank, {row.global_batch_size} in all",
                           f"{fmt.seconds(row.lost_s)} lost, mostly in {row.phase}: {_causes(row)}"])
            for row in fmt.rows(scaling(run)) if not fmt.absent(row.efficiency)]


def _causes(row: Any) -> str:
    """Return the causes of the lost time as text, the largest first and the rest last."""
    if isinstance(row.cause_reason, str):
        return f"causes {fmt.missing(row.cause_reason)}"
    *causes, rest = [(getattr(row, name), title.lower()) for name, title, _ in _CAUSES]
    found = [*sorted(causes, reverse=True), rest]
    return ", ".join(f"{title} {fmt.seconds(lost_s)}" for lost_s, title in found)


SECTION = Section("scaling", "Scaling", 16, _html, shows=lambda run: len(scaling(run)) > 0,
                  summary=_summary, summary_order=6, points={
    "timing": [("Scaling efficiency", "timing pass of the ranks and of a single process, each in processes of their "
                "own with equal threads. The causes of the loss come from the collectives of the same iterations. The "
                "interval resamples iterations; it does not show how runs differ.")]})
