"""Columns, reasons and blocks that several sections and kinds of cases share."""

import re
from collections.abc import Iterable
from dataclasses import replace

import pandas as pd

from charact.analysis.common.pass_status import pass_reason
from charact.core.operator_types import OUTSIDE_OPERATORS
from charact.record.reader import Run
from charact.views.document import Block, Legend, Part, ShareBar
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, without_columns

CASE = Column("case", "Case", unbroken=True)
RUN = Column("run", "Run", unbroken=True)
PHASE = Column("phase", "Phase")
STATUS = Column("status", "Status", meaning="ok, oom (out of memory), diverged, error or interrupted")
ITERATION = Column("median_s", "Iteration", fmt.seconds, "median wall time of an iteration",
                   reason=lambda row: status_reason(row))  # fmt: skip
SAMPLES = Column("samples_per_s", "Samples/s", fmt.number, "samples / time of the iterations",
                 reason=lambda row: status_reason(row) or fmt.no_samples(row.batch_size))  # fmt: skip
TOKENS = Column("tokens_per_s", "Tokens/s", fmt.number, "tokens that the model reads, without padding / time of the "
                "iterations", reason=lambda row: status_reason(row) or "the model reads no text")  # fmt: skip
PADDING = Column("padding_frac", "Padding", fmt.share, "padding / (tokens + padding) that the model reads",
                 reason=lambda row: status_reason(row) or "it is not known what is padding")  # fmt: skip
MFU = Column("mfu_frac", "MFU", fmt.share, "model FLOP/s / the datasheet’s peak of the device in the case’s precision",
             reason=lambda row: status_reason(row) or row.mfu_reason)  # fmt: skip
HFU = Column("hfu_frac", "HFU", fmt.share, "MFU with the FLOP of recomputed activations",
             reason=lambda row: status_reason(row) or row.mfu_reason or "nothing is recomputed")  # fmt: skip
RATE = Column("flop_per_s", "FLOP/s", fmt.flop_rate, "counted FLOP / median iteration time",
              reason=lambda row: status_reason(row) or "not measured")  # fmt: skip
PEAK = Column("peak_bytes", "Peak memory", fmt.num_bytes, "peak of bytes allocated by PyTorch's allocator",
              reason=lambda row: status_reason(row) or "not measured")  # fmt: skip


def without_case(block: Block, case: str) -> Block:
    """Return a block without the name of its run's only case, which the page's head has."""
    named = re.compile(rf"( of |: |^){re.escape(case)}(?![\w-])(: )?")

    def short(text: str) -> str:
        return named.sub("", text)

    shown = block.table
    if shown is not None:
        shown = without_columns(replace(shown, caption=short(shown.caption)), ["case"])
    return replace(block, title=short(block.title), note=short(block.note), table=shown,
                   missing=[(short(name), reason) for name, reason in block.missing],
                   legend=[] if [name for name, _ in block.legend] == [case] else block.legend)


def legend_of(names: Iterable[str], colors: dict[str, str]) -> Legend:
    """Return the colors of the names that occur, in the order of `colors`."""
    present = set(names)
    return [(name.replace("_", " "), color) for name, color in colors.items() if name in present]


def operator_legend(kinds: Iterable[str]) -> Legend:
    """Return the colors of the groups that these operator types belong to, in the order of the groups."""
    present = {palette.operator_type(kind) for kind in kinds}
    colors = {**palette.GROUPS, OUTSIDE_OPERATORS: palette.operator_type(OUTSIDE_OPERATORS)}
    return [(group, color) for group, color in colors.items() if color in present]


def memory_bar(parts: pd.DataFrame, title: str = "Memory at the peak") -> ShareBar:
    """Return the bar of what memory is for at a case's peak, from its rows of `memory_composition`."""
    return ShareBar(title, [
        Part(row.category.replace("_", " "), float(row.share_frac), palette.CATEGORIES[row.category],
             fmt.num_bytes(row.bytes)) for row in fmt.rows(parts[parts["bytes"] > 0])])


def failure_of(status: str, reason: str | None) -> tuple[str, str] | None:
    """Return status and reason of a failed case; None if it did not fail."""
    return None if status == "ok" else (status, fmt.failure(status, reason))


def status_reason(row: object) -> str | None:
    """Return the status of a failed case as the reason for a missing number; its card has the full reason."""
    status = str(getattr(row, "status", "ok"))
    return None if status == "ok" else status


def why_nothing(run: Run, name: str) -> str:
    """Return why no case of a run has data from a pass, each reason once."""
    if not run.entries:
        return fmt.missing("the run has no cases")
    reasons = {pass_reason(run, entry.case, name) or "the record has no data" for entry in run.entries}
    return fmt.missing("; ".join(sorted(reasons)))


def by_first_case(rows: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """Merge rows that differ only in their case; the row names the first case and the number of others."""
    joined = rows.groupby(list(keys), sort=False, dropna=False, as_index=False).agg(
        case=("case", "first"), others=("case", "size"))
    more = [f" and {others - 1} more" if others > 1 else "" for others in joined["others"]]
    return joined.assign(case=joined["case"] + pd.Series(more, dtype="str"))


def missing_cases(run: Run, name: str, present: Iterable[str]) -> list[Block]:
    """Return a block with the reason for each case that a section lacks; none if all are shown."""
    shown = set(present)
    missing = [
        (entry.case, fmt.missing(pass_reason(run, entry.case, name) or "the record has no data"))
        for entry in run.entries
        if entry.case not in shown
    ]
    return [Block(title="Not shown", missing=missing)] if missing else []
