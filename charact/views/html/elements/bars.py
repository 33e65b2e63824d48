"""Figures of bars: time by phase, stage and operator type, rates."""

from collections.abc import Sequence

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from charact.views.html.elements.drawing import HALF_PX, Row, bars, draw_svg, label_above, rows_of, unit_axis
from charact.views.tables import palette


def phases(breakdown: pd.DataFrame) -> list[Markup]:
    """Draw the time of each phase per case: absolute, and as shares of the iteration."""
    return _by_phase(
        rows_of(breakdown, "case", "phase", "time_s"),
        times=("Time of an iteration by phase", "time of an iteration"),
        shares=("Share of each phase in an iteration", "share of the iteration"),
    )


def stages(case: str, breakdown: pd.DataFrame) -> list[Markup]:
    """Draw the time of each stage's phases for one training: absolute, and as shares of the stage."""
    return _by_phase(
        rows_of(breakdown, "stage", "phase", "time_s"),
        times=(f"Time by stage and phase of {case}", "time over all epochs"),
        shares=(f"Share of each phase in a stage of {case}", "share of the stage"),
    )


def _by_phase(rows: Sequence[Row], times: tuple[str, str], shares: tuple[str, str]) -> list[Markup]:
    """Draw a figure of times and one of shares, each with title and axis label."""

    def draw_times(figure: Figure) -> None:
        ax = figure.subplots()
        bars(ax, rows, palette.PHASES.__getitem__)
        label_above(ax, rows)
        unit_axis(ax, ax.get_xlim()[1], "s", times[1])

    def draw_shares(figure: Figure) -> None:
        ax = figure.subplots()
        bars(ax, rows, palette.PHASES.__getitem__, as_share=True)
        label_above(ax, rows)
        ax.xaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, symbol=" %"))
        ax.set_xlabel(shares[1])

    height_px = 60 + 52 * len(rows)
    return [draw_svg(times[0], height_px, draw_times, width_px=HALF_PX),
            draw_svg(shares[0], height_px, draw_shares, width_px=HALF_PX)]  # fmt: skip


def limits(shares: pd.DataFrame) -> Markup:
    """Draw the share of each case's iteration by limit."""
    rows = rows_of(shares, "case", "limit", "share_frac")

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        bars(ax, rows, palette.LIMITS.__getitem__, as_share=True)
        label_above(ax, rows)
        ax.xaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, symbol=" %"))
        ax.set_xlabel("share of the iteration")

    return draw_svg("Share of an iteration by what limits it", 60 + 52 * len(rows), draw)


def parts(case: str, breakdown: pd.DataFrame) -> list[Markup]:
    """Draw the time of each model's phases in an iteration of one case."""
    rows = rows_of(breakdown, "part", "phase", "time_s")

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        bars(ax, rows, palette.PHASES.__getitem__)
        label_above(ax, rows)
        unit_axis(ax, ax.get_xlim()[1], "s", "time of an iteration")

    return [draw_svg(f"Time of an iteration by model of {case}", 60 + 48 * len(rows), draw)]


def operator_types(case: str, types: pd.DataFrame) -> Markup:
    """Draw the time of each operator type in each phase of one case."""
    rows = rows_of(types, "phase", "operator_type", "time_s")

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        bars(ax, rows, palette.operator_type)
        ax.set_yticks(range(len(rows)), [label for label, _ in rows])
        unit_axis(ax, ax.get_xlim()[1], "s", "time under the profiler")

    return draw_svg(f"Time by operator type in each phase of {case}", 54 + 34 * len(rows), draw)
