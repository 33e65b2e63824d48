"""The section that says what bounds each case, why, and what could be won."""

from typing import Any

import pandas as pd
from markupsafe import Markup
from rich.console import RenderableType
from rich.text import Text

from charact.analysis.efficiency.bottleneck import bottlenecks
from charact.analysis.efficiency.time_bounds import time_limits
from charact.record.reader import Run
from charact.views.html.elements import bars
from charact.views.html.elements.blocks import CASE, Block, Body, legend_of
from charact.views.section import Section
from charact.views.sections.profile._timed_runs import is_timed
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, share_column, table

_LEAD = (
    "What an iteration’s time is spent waiting for, or working at the limit of. The parts do not overlap, and sum to "
    "the iteration. A prize is the most that removing the bottleneck could save, not a promise."
)


def bottleneck(run: Run) -> Body:
    """The verdict of each case with its evidence, and where its time goes by what limits it."""
    verdicts = bottlenecks(run)
    if verdicts.empty:
        return Body(lead=fmt.no_cases(run.partial))
    blocks = [_shares(run)] if len(time_limits(run)) else []
    return Body(lead=_LEAD, blocks=[*blocks, *(_verdict(row) for row in fmt.rows(verdicts))])


def _shares(run: Run) -> Block:
    limits = time_limits(run)
    drawn: list[Markup] = [bars.limits(limits)]
    columns = [
        CASE, Column("limit", "Limited by"), Column("time_s", "Time", fmt.seconds, "of the median iteration"),
        share_column("share_frac", "Share", "part of the median iteration"),
    ]  # fmt: skip
    return Block(figures=drawn, legend=legend_of(limits["limit"], palette.LIMITS),
                 table=table(limits, "Time of an iteration by what limits it", columns))  # fmt: skip


def _verdict(row: Any) -> Block:
    told = {"evidence": "Evidence", "prize": "Prize", "advice": "To try"}
    points = [(title, getattr(row, name)) for name, title in told.items() if isinstance(getattr(row, name), str)]
    return Block(title=f"{row.case}: {fmt.verdict(row)}", case=row.case, points=points)


def _verdict_lines(row: Any) -> RenderableType:
    """A line or a few on what bounds a case, from its row of `bottlenecks`."""
    if pd.isna(row.verdict):
        return Text.assemble("bottleneck  ", (fmt.missing(row.reason), "dim"))
    lines = Text.assemble((fmt.verdict(row), "bold"))
    for text in (row.prize, row.advice):
        if isinstance(text, str):
            lines.append(f"\n{text}", style="dim")
    return lines


def _terminal(run: Run, case: Any) -> list[RenderableType]:
    found = bottlenecks(run)
    return [_verdict_lines(row) for row in fmt.rows(found[found["case"] == case["case"]])]


SECTION = Section("bottleneck", "Bottleneck", 20, bottleneck, shows=is_timed, terminal=_terminal, terminal_order=1000)
