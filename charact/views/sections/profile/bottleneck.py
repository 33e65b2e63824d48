"""The section Bottleneck: what bounds each case, the evidence, and the potential speedup."""

import pandas as pd

from charact.analysis.efficiency.bottleneck import bottlenecks
from charact.analysis.efficiency.time_bounds import time_limits
from charact.analysis.findings import has_findings
from charact.analysis.ranks.stragglers import rank_verdicts
from charact.record.reader import Run
from charact.views.document import Block, Body, Item, Line, Lines, sentence_lines, verdict_lines
from charact.views.figures import bars
from charact.views.html.elements.blocks import CASE, legend_of
from charact.views.section import Section
from charact.views.sections.profile._shared import is_timed
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, share_column, table

_LEAD = (
    "Shares of an iteration’s time by the resource that limits it. The parts do not overlap, and sum to "
    "the iteration. The potential speedup is an upper bound: removing the bottleneck saves at most that."
)


def _html(run: Run) -> Body:
    verdicts, limits = bottlenecks(run), time_limits(run).replace({"limit": {"other": "not known"}})  # also a phase
    if verdicts.empty:
        return Body(lead=fmt.no_cases(run.partial))
    blocks = []
    if len(limits):
        columns = [
            CASE, Column("limit", "Limited by"), Column("time_s", "Time", fmt.seconds, "of the median iteration"),
            share_column("share_frac", "Share", "part of the median iteration"),
        ]  # fmt: skip
        blocks.append(Block(figures=[bars.limits(limits)], legend=legend_of(limits["limit"], palette.LIMITS),
                            table=table(limits, "Time of an iteration by what limits it", columns)))  # fmt: skip
    evidence = _verdicts(verdicts, advises=not has_findings(run))
    return Body(lead=_LEAD, blocks=[*blocks, Block(folded=True, table=evidence)])


def _verdicts(verdicts: pd.DataFrame, *, advises: bool) -> Table:
    """Build the table of verdicts with their evidence; saving and advice are left out where findings say them."""
    texts = [fmt.verdict(row) if isinstance(row.verdict, str) else None for row in fmt.rows(verdicts)]
    advice = [Column("prize", "Potential speedup", reason=lambda row: "no verdict", wide=True),
              Column("advice", "To try", reason=lambda row: "nothing is known", wide=True)] if advises else []
    columns = [
        CASE, Column("text", "Verdict", reason=lambda row: row.reason, wide=True),
        Column("evidence", "Evidence", reason=lambda row: "no verdict", wide=True), *advice,
    ]  # fmt: skip
    rows = verdicts.assign(text=pd.Series(texts, verdicts.index, dtype="object"))
    return table(rows, "Verdict of each case, and its evidence", columns)


def _summary(run: Run, case: str) -> list[Item]:
    """Return the verdict of a case, with saving and advice unless findings say it.

    Nothing is returned if it has no verdict, and the one about its ranks is shown instead.
    """
    found, of_ranks = bottlenecks(run), rank_verdicts(run)
    explained = of_ranks.loc[of_ranks["verdict"].notna(), "case"]
    advises = not has_findings(run)
    items: list[Item] = []
    for row in fmt.rows(found[(found["case"] == case) & (found["verdict"].notna() | ~found["case"].isin(explained))]):
        if pd.notna(row.verdict):
            items.append(verdict_lines("bottleneck", fmt.verdict(row), (row.prize, row.advice) if advises else ()))
        else:
            advice = sentence_lines(row.advice, "strong") if advises and isinstance(row.advice, str) else []
            items.append(Lines([Line("bottleneck  ", (fmt.missing(row.reason), "dim")), *advice]))
    return items


SECTION = Section("bottleneck", "Bottleneck", 175, _html, shows=is_timed, summary=_summary, summary_order=1000)
