"""Figures of a profile: time by phase and operator type, memory, rates."""

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from markupsafe import Markup
from matplotlib.figure import Figure

from charact.views import format as fmt
from charact.views import palette
from charact.views.html.drawing import FAINT, HALF_PX, INK, bars, draw_svg, label_above, rows_of, unit_axis


def phases(breakdown: pd.DataFrame) -> list[Markup]:
    """Time of each phase a case: absolute, and as shares of the iteration."""
    rows = rows_of(breakdown, "case", "phase", "time_s")

    def draw_times(figure: Figure) -> None:
        ax = figure.subplots()
        bars(ax, rows, palette.PHASES.__getitem__)
        label_above(ax, rows)
        unit_axis(ax, ax.get_xlim()[1], "s", "time of an iteration")

    def draw_shares(figure: Figure) -> None:
        ax = figure.subplots()
        bars(ax, rows, palette.PHASES.__getitem__, as_share=True)
        label_above(ax, rows)
        ax.xaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, symbol=" %"))
        ax.set_xlabel("share of the iteration")

    height_px = 60 + 52 * len(rows)
    return [
        draw_svg("Time of an iteration by phase", height_px, draw_times, width_px=HALF_PX),
        draw_svg("Share of each phase in an iteration", height_px, draw_shares, width_px=HALF_PX),
    ]


def parts(case: str, breakdown: pd.DataFrame) -> list[Markup]:
    """Time of each model's phases in an iteration of one case."""
    rows = rows_of(breakdown, "part", "phase", "time_s")

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        bars(ax, rows, palette.PHASES.__getitem__)
        label_above(ax, rows)
        unit_axis(ax, ax.get_xlim()[1], "s", "time of an iteration")

    return [draw_svg(f"Time of an iteration by model of {case}", 60 + 48 * len(rows), draw)]


def operator_types(case: str, types: pd.DataFrame) -> Markup:
    """Time of each operator type in each phase of one case."""
    rows = rows_of(types, "phase", "operator_type", "time_s")

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        bars(ax, rows, palette.operator_type)
        ax.set_yticks(range(len(rows)), [label for label, _ in rows])
        unit_axis(ax, ax.get_xlim()[1], "s", "time under the profiler")

    return draw_svg(f"Time by operator type in each phase of {case}", 54 + 34 * len(rows), draw)


def memory(composition: pd.DataFrame) -> Markup:
    """Bytes of each category at the peak of each case."""
    predicted = composition["method"] == "predicted"
    labels = composition["case"].where(~predicted, composition["case"] + " (predicted)")
    rows = rows_of(composition.assign(label=labels), "label", "category", "bytes")

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        bars(ax, rows, palette.CATEGORIES.__getitem__)
        label_above(ax, rows)
        unit_axis(ax, ax.get_xlim()[1], "B", "memory at the peak of an iteration")

    return draw_svg("Memory at the peak of an iteration by category", 60 + 48 * len(rows), draw)


def memory_by_size(title: str, rows: pd.DataFrame, size_unit: str) -> Markup:
    """Bytes of each category at the peak against the input size, stacked."""
    sizes = rows.pivot_table(index="input_size", columns="category", values="bytes", aggfunc="sum", sort=False)
    sizes = sizes.loc[:, (sizes > 0).any()]

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        colors = [palette.CATEGORIES[str(category)] for category in sizes.columns]
        ax.stackplot(sizes.index, sizes.to_numpy().T, colors=colors, edgecolor="white", linewidth=0.8)
        ax.plot(sizes.index, sizes.sum(axis="columns"), "o-", color=INK, linewidth=1.2, markersize=4)
        factor, unit = fmt.scale([sizes.sum(axis="columns").max()], "B")
        ax.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value * factor:g}"))
        ax.set(ylabel=f"peak memory ({unit})", xlabel=f"input size ({size_unit})", ylim=(0, None))
        ax.set_xticks(sizes.index)
        ax.tick_params(axis="y", labelsize=11, labelcolor=FAINT)
        ax.margins(x=0.02)
        sns.despine(ax=ax, left=True, bottom=True)

    return draw_svg(f"Peak memory against input size: {title}", 260, draw)


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
        label_above(ax, [(case, []) for case in cases])
        unit_axis(ax, by_phase["flop_per_s"].max(), "FLOP/s", "achieved rate")
        ax.grid(visible=True, axis="x")
        sns.despine(ax=ax, left=True, bottom=True)

    return draw_svg("Achieved FLOP/s of each phase", 60 + 56 * len(cases), draw)
