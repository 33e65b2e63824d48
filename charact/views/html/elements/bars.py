"""Figures of bars: time by phase, stage and operator type, rates."""

from collections.abc import Sequence

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from charact.views.html.elements.drawing import Row, bar_figure, bars, draw_svg, rows_of, unit_axis
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
    colors = palette.PHASES.__getitem__
    return [bar_figure(times[0], rows, colors, times[1]), bar_figure(shares[0], rows, colors, shares[1], unit=None)]


def limits(shares: pd.DataFrame) -> Markup:
    """Draw the share of each case's iteration by limit."""
    return bar_figure("Share of an iteration by what limits it", rows_of(shares, "case", "limit", "share_frac"),
                      palette.LIMITS.__getitem__, "share of the iteration", unit=None)


def parts(case: str, breakdown: pd.DataFrame) -> list[Markup]:
    """Draw the time of each model's phases in an iteration of one case."""
    return [bar_figure(f"Time of an iteration by model of {case}", rows_of(breakdown, "part", "phase", "time_s"),
                       palette.PHASES.__getitem__, "time of an iteration", row_px=48)]


def operator_types(case: str, types: pd.DataFrame) -> Markup:
    """Draw the time of each operator type in each phase of one case."""
    rows = rows_of(types, "phase", "operator_type", "time_s")

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        bars(ax, rows, palette.operator_type, "s")
        ax.set_yticks(range(len(rows)), [label for label, _ in rows])
        unit_axis(ax, ax.get_xlim()[1], "s", "time under the profiler")

    return draw_svg(f"Time by operator type in each phase of {case}", 54 + 34 * len(rows), draw)
