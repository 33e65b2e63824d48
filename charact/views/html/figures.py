"""Figures as inline SVG: no state shared between threads, no script, no style element, the same bytes every time."""

import re
import threading
from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from charact.views import format as fmt
from charact.views import palette

_WIDTH_PX, _HALF_PX = 860, 440
_INK, _FAINT = "#1F2933", "#667585"
_RC: Any = {
    **sns.axes_style("whitegrid"),
    "svg.fonttype": "none",  # text stays text: it can be searched, selected and read out
    "text.parse_math": False,  # a name may hold a $
    "font.family": "DejaVu Sans", "font.size": 12, "axes.labelsize": 12, "xtick.labelsize": 11, "ytick.labelsize": 12,
    "axes.edgecolor": "#D5DBE1", "grid.color": "#E8ECF0", "text.color": _INK, "axes.labelcolor": _FAINT,
    "xtick.color": _FAINT, "ytick.color": _INK, "axes.axisbelow": True,
}  # fmt: skip
_RC_LOCK = threading.Lock()  # matplotlib's settings belong to the process
_LABEL_FROM_FRAC = 0.07

Row = tuple[str, Sequence[tuple[str, float]]]
"""A stacked bar: its label, and its parts as (name, value)."""


def _draw(title: str, height_px: float, draw: Callable[[Figure], None], *, width_px: int = _WIDTH_PX) -> Markup:
    """SVG of a figure, one unit a pixel.

    Ids that would repeat in a page of several figures are taken out, and so are clips: nothing is drawn past its axes,
    and a clip that another figure of the page defines is lost while that figure is hidden.
    """
    text = StringIO()
    with _RC_LOCK, mpl.rc_context({**_RC, "svg.hashsalt": title}):
        figure = Figure(figsize=(width_px / 72, height_px / 72), layout="constrained")
        draw(figure)
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r'<clipPath.*?</clipPath>| clip-path="[^"]*"', "", body, flags=re.DOTALL)
    head = f'<svg viewBox="0 0 {width_px} {height_px:g}" role="img" xmlns="http://www.w3.org/2000/svg">'
    return Markup(f"{head}<title>{escape(title)}</title>{body}")


def _bars(ax: Axes, rows: Sequence[Row], colors: Callable[[str], str], *, as_share: bool = False) -> None:
    """Stacked horizontal bars, the first on top; parts that are wide enough carry their share."""
    widest = max(sum(value for _, value in parts) for _, parts in rows)
    for position, (_, parts) in enumerate(rows):
        total, start = sum(value for _, value in parts), 0.0
        for name, value in parts:
            width = value / total if as_share and total else value
            ax.barh(position, width, left=start, height=0.5, color=colors(name), edgecolor="white", linewidth=0.8)
            if as_share and width >= _LABEL_FROM_FRAC:
                ink = _ink_on(colors(name))
                ax.text(start + width / 2, position, f"{100 * width:.0f} %", ha="center", va="center", color=ink,
                        fontsize=11)  # fmt: skip
            start += width
    ax.set_xlim(0, 1 if as_share else widest * 1.02 or 1)
    ax.set_ylim(len(rows) - 0.5, -0.65)
    ax.grid(visible=False, axis="y")
    sns.despine(ax=ax, left=True, bottom=True)


def _ink_on(color: str) -> str:
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 145 else _INK


def _label_above(ax: Axes, rows: Sequence[Row]) -> None:
    """Labels over their bars rather than beside them: names are long, and pages may be narrow."""
    ax.set_yticks([])
    for position, (label, _) in enumerate(rows):
        ax.text(0, position - 0.32, label, ha="left", va="bottom", fontsize=11, transform=ax.transData)


def _unit_axis(ax: Axes, largest: float, unit: str, label: str) -> None:
    factor, scaled_unit = fmt.scale([largest], unit)
    ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5))
    ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value * factor:g}"))
    ax.set_xlabel(f"{label} ({scaled_unit})")


def _rows(frame: pd.DataFrame, label: str, name: str, value: str) -> list[Row]:
    return [
        (str(key), list(zip(rows[name].astype(str), rows[value].astype(float), strict=True)))
        for key, rows in frame.groupby(label, sort=False)
    ]


def phases(breakdown: pd.DataFrame) -> list[Markup]:
    """Time of each phase a case: absolute, and as shares of the iteration."""
    rows = _rows(breakdown, "case", "phase", "time_s")

    def draw_times(figure: Figure) -> None:
        ax = figure.subplots()
        _bars(ax, rows, palette.PHASES.__getitem__)
        _label_above(ax, rows)
        _unit_axis(ax, ax.get_xlim()[1], "s", "time of an iteration")

    def draw_shares(figure: Figure) -> None:
        ax = figure.subplots()
        _bars(ax, rows, palette.PHASES.__getitem__, as_share=True)
        _label_above(ax, rows)
        ax.xaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, symbol=" %"))
        ax.set_xlabel("share of the iteration")

    height_px = 60 + 52 * len(rows)
    return [
        _draw("Time of an iteration by phase", height_px, draw_times, width_px=_HALF_PX),
        _draw("Share of each phase in an iteration", height_px, draw_shares, width_px=_HALF_PX),
    ]


def operator_types(case: str, types: pd.DataFrame) -> Markup:
    """Time of each operator type in each phase of one case."""
    rows = _rows(types, "phase", "operator_type", "time_s")

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        _bars(ax, rows, palette.operator_type)
        ax.set_yticks(range(len(rows)), [label for label, _ in rows])
        _unit_axis(ax, ax.get_xlim()[1], "s", "time under the profiler")

    return _draw(f"Time by operator type in each phase of {case}", 54 + 34 * len(rows), draw)


def memory(composition: pd.DataFrame) -> Markup:
    """Bytes of each category at the peak of each case."""
    predicted = composition["method"] == "predicted"
    labels = composition["case"].where(~predicted, composition["case"] + " (predicted)")
    rows = _rows(composition.assign(label=labels), "label", "category", "bytes")

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        _bars(ax, rows, palette.CATEGORIES.__getitem__)
        _label_above(ax, rows)
        _unit_axis(ax, ax.get_xlim()[1], "B", "memory at the peak of an iteration")

    return _draw("Memory at the peak of an iteration by category", 60 + 48 * len(rows), draw)


def memory_by_size(title: str, rows: pd.DataFrame, size_unit: str) -> Markup:
    """Bytes of each category at the peak against the input size, stacked."""
    sizes = rows.pivot_table(index="input_size", columns="category", values="bytes", aggfunc="sum", sort=False)
    sizes = sizes.loc[:, (sizes > 0).any()]

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        colors = [palette.CATEGORIES[str(category)] for category in sizes.columns]
        ax.stackplot(sizes.index, sizes.to_numpy().T, colors=colors, edgecolor="white", linewidth=0.8)
        ax.plot(sizes.index, sizes.sum(axis="columns"), "o-", color=_INK, linewidth=1.2, markersize=4)
        factor, unit = fmt.scale([sizes.sum(axis="columns").max()], "B")
        ax.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value * factor:g}"))
        ax.set(ylabel=f"peak memory ({unit})", xlabel=f"input size ({size_unit})", ylim=(0, None))
        ax.set_xticks(sizes.index)
        ax.tick_params(axis="y", labelsize=11, labelcolor=_FAINT)
        ax.margins(x=0.02)
        sns.despine(ax=ax, left=True, bottom=True)

    return _draw(f"Peak memory against input size: {title}", 260, draw)


def rates(work: pd.DataFrame) -> Markup:
    """FLOP/s of each phase with counted work, a group of bars a case."""
    cases = list(work["case"].unique())
    by_phase = work.dropna(subset=["flop_per_s"])

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        colors = {phase: palette.PHASES[phase] for phase in by_phase["phase"].unique()}
        sns.barplot(by_phase, y="case", x="flop_per_s", hue="phase", palette=colors, order=cases, saturation=1,
                    width=0.5, legend=False, ax=ax)  # fmt: skip
        ax.set_ylim(len(cases) - 0.5, -0.65)
        ax.set_ylabel("")
        _label_above(ax, [(case, []) for case in cases])
        _unit_axis(ax, by_phase["flop_per_s"].max(), "FLOP/s", "achieved rate")
        ax.grid(visible=True, axis="x")
        sns.despine(ax=ax, left=True, bottom=True)

    return _draw("Achieved FLOP/s of each phase", 60 + 56 * len(cases), draw)
