"""Figures of memory: at the peak, against the input, training over inference, and through one iteration."""

from collections.abc import Mapping

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from charact.views.html.elements.drawing import (
    FAINT,
    INK,
    INVISIBLE,
    bar_figure,
    draw_svg,
    plain_axes,
    remove_frame,
    rows_of,
    scaled_ticks,
    show_on_hover,
    show_points_on_hover,
    unit_axis,
)
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.memory_text import AXES

_LIMIT = "#A6461D"
_BAND_ALPHA = 0.22
_BANDS, _NARROW_BAND = ((0.04, "#C3CBD4"), (0.12, "#8794A1")), (0.22, "#4A5562")
"""Opacity of a phase's tint and color of its strip, alternating, and of a phase too narrow for its name. Phases have no
colors of their own here, which the areas would hide.
"""
_NAMED_FROM_FRAC = 0.1
"""Minimum share of the axis for the name of a phase."""
_NUM_COLUMNS = 80
"""Maximum number of columns of a timeline that show their values on hover."""


def at_peak(composition: pd.DataFrame) -> Markup:
    """Draw bytes of each category at the peak of each case."""
    predicted = composition["method"] == "predicted"
    labels = composition["case"].where(~predicted, composition["case"] + " (predicted)")
    rows = rows_of(composition.assign(label=labels), "label", "category", "bytes")
    return bar_figure("Memory at the peak of an iteration by category", rows, palette.CATEGORIES.__getitem__,
                      "memory at the peak of an iteration", unit="B", row_px=48)


def against_input(title: str, mode: str, rows: pd.DataFrame, limit_bytes: float | None) -> Markup:
    """Draw peaks by category against the input of one series: predicted areas, or measured ones if there are no others.

    Measured dots are drawn over predicted areas: black for the peak, small for the top of each category. Rows have
    num_positions, position, method, category, bytes, low_bytes and high_bytes (of the whole peak).
    """
    predicted, measured = (rows[rows["method"] == method] for method in ("predicted", "measured"))
    areas = _stack(predicted if len(predicted) else measured)
    dots = _stack(measured).reindex(columns=areas.columns, fill_value=0.0)

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        colors = [palette.CATEGORIES[str(name)] for name in areas.columns]
        ax.stackplot(areas.index, areas.to_numpy().T, colors=colors, edgecolor="white", linewidth=0.8)
        axis = AXES[str(rows["position"].iloc[0])]
        for method, sizes in (("predicted", _stack(predicted)), ("measured", dots)):
            show_points_on_hover(ax, [
                (at, parts.sum(), _held_text(f"{method}, {axis} {at:,.0f}", parts))
                for at, (_, parts) in zip(sizes.index.astype(float), sizes.iterrows(), strict=True)])
        ax.plot(areas.index, areas.sum(axis="columns"), color=INK, linewidth=1.2)
        if len(predicted):
            band = predicted.drop_duplicates("num_positions").sort_values("num_positions")
            ax.fill_between(band["num_positions"], band["low_bytes"], band["high_bytes"], color=INK, linewidth=0,
                            alpha=_BAND_ALPHA)  # fmt: skip
            tops = dots.cumsum(axis="columns")
            for name, color in zip(tops.columns, colors, strict=True):
                ax.plot(tops.index, tops[name], "o", color=color, markersize=4, markeredgecolor=INK,
                        markeredgewidth=0.7)  # fmt: skip
        ax.plot(dots.index, dots.sum(axis="columns"), "o", color=INK, markersize=5)
        if limit_bytes is not None and rows["high_bytes"].max() >= limit_bytes:
            ax.axhline(limit_bytes, color=_LIMIT, linestyle="--", linewidth=1.2)
        _bytes_axis(ax, max(areas.sum(axis="columns").max(), rows["high_bytes"].max()), f"{mode}, peak")
        _input_axis(ax, str(rows["position"].iloc[0]))
        _legend(ax, has_predicted=len(predicted) > 0, has_measured=len(measured) > 0, has_band=len(predicted) > 0)

    return draw_svg(title, 280, draw)


def _held_text(heading: str, parts: "pd.Series[float]") -> str:
    """Return the lines of a heading with the total bytes, and of each category that holds any, largest first."""
    held = parts[parts > 0].sort_values(ascending=False)
    return "\n".join([f"{heading}: {fmt.num_bytes(parts.sum())}",
                      *(f"{str(name).replace('_', ' ')}: {fmt.num_bytes(size)}" for name, size in held.items())])


def _stack(rows: pd.DataFrame) -> pd.DataFrame:
    """Return bytes by number of positions and category, without categories that never occur."""
    sizes = rows.pivot_table(index="num_positions", columns="category", values="bytes", aggfunc="sum", sort=False)
    sizes = sizes.reindex(columns=[name for name in palette.CATEGORIES if name in sizes.columns]).sort_index()
    return sizes.loc[:, (sizes > 0).any()].fillna(0.0)


def ratios(title: str, rows: pd.DataFrame, colors: Mapping[str, str]) -> Markup:
    """Draw the peak of training over that of inference against the input; rows have a `label` with a given color."""

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        for (label, method), group in rows.groupby(["label", "method"], sort=False):
            others = set(rows.loc[rows["label"] == label, "method"]) - {"measured"}
            style = "-" if method == "predicted" else "o" if others else "o-"
            ax.plot(group["num_positions"], group["ratio"], style, color=colors[str(label)], linewidth=1.5,
                    markersize=5)  # fmt: skip
            show_points_on_hover(ax, [
                (row.num_positions, row.ratio, f"{label}, {method}: {fmt.ratio(row.ratio)} at {row.num_positions:,.0f}")
                for row in fmt.rows(group)])  # fmt: skip
        ax.axhline(1, color=FAINT, linewidth=0.8)
        ax.set_ylim(0, 1.08 * rows["ratio"].max())
        ax.set_ylabel("training / inference")
        ax.tick_params(axis="y", labelsize=11, labelcolor=FAINT)
        _input_axis(ax, str(rows["position"].iloc[0]))
        methods = set(rows["method"])
        _legend(ax, has_predicted="predicted" in methods, has_measured="measured" in methods, has_band=False)

    return draw_svg(title, 240, draw)


def timeline(title: str, rows: pd.DataFrame) -> Markup:
    """Draw memory of one iteration by category, with bands of its phases and a mark at the peak.

    Rows are those of `memory_timeline` of one case and method: against time if measured, else in order.
    """
    is_timed = bool(rows["time_s"].notna().all())
    rows = rows.assign(at=rows["time_s"] if is_timed else rows["moment"])
    held = rows.pivot_table(index="at", columns="category", values="bytes", aggfunc="sum")
    held = held[[name for name in palette.CATEGORIES if name in held and (held[name] > 0).any()]]
    totals = held.sum(axis="columns")
    moments = totals.index.to_numpy(dtype="float64")
    # The last snapshot is drawn with the average duration.
    edges = [*moments, moments[-1] + ((moments[-1] - moments[0]) / (len(moments) - 1) if len(moments) > 1 else 1.0)]
    at_peak, peak_bytes = moments[totals.argmax()], totals.max()

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        tops = held.cumsum(axis="columns")
        for name in reversed(tops.columns):  # each covers the lower part of the one behind it
            ax.fill_between(edges, 0, [*tops[name], tops[name].iloc[-1]], step="post", linewidth=0,
                            color=palette.CATEGORIES[str(name)])  # fmt: skip
        ax.plot([at_peak], [peak_bytes], "v", color=INK, markersize=7)
        side, offset = ("right", -8) if at_peak - moments[0] > 0.6 * (moments[-1] - moments[0]) else ("left", 8)
        ax.annotate(f"peak {fmt.num_bytes(peak_bytes)}", (at_peak, peak_bytes), (offset, 4),
                    textcoords="offset points", ha=side, va="bottom", fontsize=11)  # fmt: skip
        ax.set_xlim(edges[0], edges[-1])
        _bytes_axis(ax, peak_bytes, "held")
        ax.set_ylim(0, 1.12 * peak_bytes)
        _hover_columns(ax, held, edges, is_timed=is_timed)
        _phase_bands(ax, rows.drop_duplicates("at").set_index("at")["phase"].sort_index(), edges[-1])
        if is_timed:
            unit_axis(ax, edges[-1], "s", "time, measured under the profiler")
        else:
            ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5, integer=True))
            ax.set_xlabel("allocations and frees in order, predicted")

    return draw_svg(title, 280, draw)


def _hover_columns(ax: Axes, held: pd.DataFrame, edges: list[float], *, is_timed: bool) -> None:
    """Add invisible columns over the time axis; each shows the fullest of its snapshots on hover."""
    totals = held.sum(axis="columns").to_numpy()
    step = -(-len(held) // _NUM_COLUMNS)
    for start in range(0, len(held), step):
        fullest = start + int(totals[start : start + step].argmax())
        at = float(held.index[fullest])
        heading = f"at {fmt.seconds(at)}" if is_timed else f"after {at:,.0f} allocations and frees"
        end = edges[min(start + step, len(held))]
        column = ax.axvspan(edges[start], end, color=INK, alpha=INVISIBLE, linewidth=0, zorder=9)
        show_on_hover([column], _held_text(heading, held.iloc[fullest]))


def _phase_bands(ax: Axes, phases: "pd.Series[str]", end_at: float) -> None:
    """Draw a strip above and a tint behind each run of snapshots in one phase, with its name if there is space."""
    changed = phases.ne(phases.shift()).to_numpy()
    moments = phases.index.to_numpy(dtype="float64")
    begins = moments[changed]
    across = ax.get_xaxis_transform()
    num_named = 0
    for begin, end, phase in zip(begins, [*begins[1:], end_at], phases[changed], strict=True):
        is_named = pd.notna(phase) and end - begin >= _NAMED_FROM_FRAC * (end_at - moments[0])
        tint_alpha, strip = _BANDS[num_named % 2] if is_named else _NARROW_BAND
        ax.axvspan(begin, end, color=FAINT, alpha=tint_alpha, linewidth=0, zorder=0)
        ax.fill_between([begin, end], 1, 1.03, color=strip, linewidth=0, transform=across)
        if is_named:
            num_named += 1
            ax.text((begin + end) / 2, 1.04, phase, ha="center", va="bottom", color=FAINT, fontsize=11,
                    transform=across)  # fmt: skip


def _bytes_axis(ax: Axes, largest: float, label: str) -> None:
    ax.set_ylim(0, None)
    ax.set_ylabel(f"{label} ({scaled_ticks(ax.yaxis, largest, 'B')})")
    plain_axes(ax)


def _input_axis(ax: Axes, position: str) -> None:
    ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5))
    ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.set_xlabel(AXES[position])
    ax.margins(x=0.02)
    remove_frame(ax)


def _legend(ax: Axes, *, has_predicted: bool, has_measured: bool, has_band: bool) -> None:
    """Draw the legend of lines, dots and bands."""
    handles: list[Artist] = []
    if has_predicted:
        handles.append(Line2D([], [], color=INK, linewidth=1.4, label="predicted"))
    if has_band:
        handles.append(Patch(color=INK, alpha=_BAND_ALPHA, linewidth=0, label="its uncertainty"))
    if has_measured:
        handles.append(Line2D([], [], color=INK, marker="o", linestyle="", markersize=5, label="measured"))
    ax.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, fontsize=11,
              borderaxespad=0, handlelength=1.6)  # fmt: skip
