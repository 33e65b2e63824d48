"""Figures of bars: time by phase, stage and operator type, rates, a row for each name."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from charact.views.html.elements.drawing import (
    Row,
    bar_figure,
    bars,
    draw_svg,
    remove_frame,
    rows_of,
    show_on_hover,
    unit_axis,
)
from charact.views.tables import format as fmt
from charact.views.tables import palette

_ROW_PX = 17
"""Height of a row in a figure of many names (px)."""
_HEAD, _TAIL = 12, 33
"""Characters kept of the start and end of a long name."""


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


def bars_by_name(title: str, rows: pd.DataFrame, value: str, unit: str, label: str,
                 color: Callable[[Any], str]) -> Markup:  # fmt: skip
    """Draw a bar per row, named by the column `name`; `color` returns the color of a row."""

    def draw(ax: Axes) -> None:
        for position, row in enumerate(fmt.rows(rows)):
            drawn = ax.barh(position, getattr(row, value), height=0.66, color=color(row), linewidth=0)
            show_on_hover(drawn, f"{row.name}: {fmt.quantity(unit)(getattr(row, value))}")
        ax.set_xlim(0, float(rows[value].max()) * 1.03 or 1)
        unit_axis(ax, ax.get_xlim()[1], unit, label)

    return by_name(title, rows["name"].tolist(), draw)


def by_name(title: str, names: Sequence[str], draw: Callable[[Axes], None]) -> Markup:
    """Draw a figure of rows, each named on its left."""

    def draw_all(figure: Figure) -> None:
        ax = figure.subplots()
        draw(ax)
        ax.set_yticks(range(len(names)), short_names(names), fontsize=10)
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.grid(visible=False, axis="y")
        remove_frame(ax)

    return draw_svg(title, 66 + _ROW_PX * len(names), draw_all)


def short_names(names: Iterable[str]) -> list[str]:
    """Shorten names: remove the suffix that all share, such as the device, and the middle of long names."""
    words = [name.split("-") for name in names]
    shared = 0
    if len(set(map(tuple, words))) > 1:
        while len({tuple(parts[-shared - 1 :]) for parts in words}) == 1 and shared < min(map(len, words)) - 1:
            shared += 1
    bare = ["-".join(parts[: len(parts) - shared]) for parts in words]
    return [name if len(name) <= _HEAD + _TAIL + 1 else f"{name[:_HEAD]}…{name[-_TAIL:]}" for name in bare]
