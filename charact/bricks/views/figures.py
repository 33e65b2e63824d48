"""Charts of constructed models: against measured latencies, normalized, and by layer type."""

import math
from collections.abc import Sequence

import pandas as pd

from charact.bricks.analysis.tables import BAND_FRAC
from charact.views.charts import (
    DASHED,
    FAINT,
    INK,
    NOT_CONNECTED,
    TRACK,
    Area,
    Axis,
    Bar,
    Chart,
    Curve,
    Mark,
    Note,
    Rule,
    Span,
    ends_around,
    ink_on,
    of_rows,
    stacked_bars,
)
from charact.views.figures.bars import ROW_PX, by_name, short_names
from charact.views.tables import format as fmt
from charact.views.tables import palette

_LONGEST = 26
"""Maximum number of characters of a name next to a point."""
_NUM_NAMED = 6
_APART = 1.15
"""Minimum distance of two names, as a factor, so that they do not overlap."""
_FULL_FRAC = 0.25
"""Deviation from 1 with the full color of a heatmap."""
_BELOW, _ABOVE = "#4477AA", "#EE6677"
DEVIATIONS = {"shorter than measured": _BELOW, "longer than measured": _ABOVE}
"""Colors of a heatmap of constructed over measured latencies."""
_BAR_PX = 10
"""Height of a bar of a group (px)."""
_MAX_GROUP_PX = 39
"""Maximum height of a group (px): names of taller rows are above them."""


def against_measured(rows: pd.DataFrame, colors: dict[str, str]) -> Chart:
    """Return constructed against measured latency, both logarithmic, with the diagonal and the error band.

    Models outside of the band are named, largest deviations first.
    """
    low, high = ends_around(pd.concat([rows[name].dropna() for name in ("latency_s", "low_s", "high_s", "measured_s")]),
                            1.6)
    # The band ends at the edges: figures are drawn without clip paths.
    corners = [low, low / (1 - BAND_FRAC), high / (1 + BAND_FRAC), high]
    marks: list[Mark] = [Area(corners, [max((1 - BAND_FRAC) * at, low) for at in corners],
                              [min((1 + BAND_FRAC) * at, high) for at in corners], TRACK),
                         Curve([low, high], [low, high], FAINT, width=1)]
    for strategy, of_strategy in rows.groupby("strategy", sort=False):
        texts = [f"{row.case}\nmeasured {fmt.seconds(row.measured_s)}, constructed {fmt.seconds(row.latency_s)}"
                 for row in fmt.rows(of_strategy)]
        marks.append(Curve(of_strategy["measured_s"], of_strategy["latency_s"], colors[str(strategy)], NOT_CONNECTED,
                           marker="o", size=6, edge="white", low=of_strategy["low_s"], high=of_strategy["high_s"],
                           texts=texts))
    x, y = (Axis(label, None, low, high, log=True, text=fmt.seconds) for label in ("measured", "constructed"))
    marks += _outliers(rows, edge=high * (low / high) ** 0.3)
    return Chart("Constructed against measured latency", x, y, marks, 400)


def _outliers(rows: pd.DataFrame, edge: float) -> list[Mark]:
    """Return names of models outside of the band, without overlap, on the side away from the band.

    Right of `edge` there is no space for a name.
    """
    outside = rows[rows["error_frac"].abs() > BAND_FRAC]
    farthest = outside["error_frac"].abs().sort_values(ascending=False).index
    names = dict(zip(rows["case"], short_names(rows["case"]), strict=True))
    notes: list[Mark] = []
    named_s: list[float] = []
    for row in fmt.rows(outside.loc[farthest].drop_duplicates("case").head(_NUM_NAMED)):
        if any(1 / _APART < row.latency_s / other_s < _APART for other_s in named_s):
            continue
        named_s.append(row.latency_s)
        right = row.error_frac < 0 and row.measured_s < edge
        name = names[row.case] if len(names[row.case]) <= _LONGEST else f"…{names[row.case][1 - _LONGEST :]}"
        notes.append(Note(row.measured_s, row.latency_s, name, "left" if right else "right", "center", 9.5, INK,
                          (8 if right else -8, 10 if row.error_frac > 0 else -10), floating=True))
    return notes


def normalized(rows: pd.DataFrame, kinds: str, colors: dict[str, str], means: dict[str, float]) -> Chart:
    """Return each model's constructed over its measured latency, a point per kind, with geometric means.

    Args:
        rows: rows of `normalized_latency`, in drawing order.
        kinds: column that distinguishes points of a model.
        colors: colors of the kinds.
        means: geometric means of the kinds.
    """
    names = list(dict.fromkeys(rows["case"]))
    ends = [1 - BAND_FRAC, 1 + BAND_FRAC, *rows["normalized"]]
    margin = (max(ends) / min(ends)) ** 0.06
    marks: list[Mark] = [Span(1 - BAND_FRAC, 1 + BAND_FRAC, TRACK, 1), Rule(1, FAINT, width=1, axis="x")]
    marks += [Rule(mean, colors[kind], DASHED, 1.4, "x") for kind, mean in means.items()]
    for kind, of_kind in rows.groupby(kinds, sort=False):
        texts = [f"{row.case}\n{kind}: {row.normalized:.3g}" for row in fmt.rows(of_kind)]
        marks.append(Curve(of_kind["normalized"], of_kind["case"].map(names.index), colors[str(kind)], NOT_CONNECTED,
                           marker="o", size=6, edge="white", texts=texts))
    axis = Axis("constructed / measured (dashed: geometric mean)", None, min(ends) / margin, max(ends) * margin,
                log=True, always=1, text=lambda value: f"{value:.3g}")
    return by_name("Constructed over measured latency of each model", names, axis, marks)


def grouped_bars(title: str, rows: pd.DataFrame, colors: dict[str, str], axis: Axis, rules: Sequence[Rule] = ()
                 ) -> Chart:
    """Return a group of bars per name, with one bar for each kind.

    Args:
        title: title of the chart.
        rows: rows with the columns name, kind and value; a missing value has no bar.
        colors: colors of the kinds, in drawing order.
        axis: axis of the values.
        rules: reference lines over the bars.
    """
    names, kinds, height = list(dict.fromkeys(rows["name"])), list(colors), 0.8 / len(colors)
    bars = [Bar(names.index(row.name) + (kinds.index(row.kind) - (len(kinds) - 1) / 2) * height, 0, row.value, height,
                colors[row.kind], text=f"{row.name}, {row.kind}: {row.value:.3g}")
            for row in fmt.rows(rows.dropna(subset=["value"]))]
    return of_rows(title, short_names(names), axis, [*bars, *rules], min(_MAX_GROUP_PX, _BAR_PX * len(kinds) + 6))


def latencies(title: str, rows: pd.DataFrame, colors: dict[str, str]) -> Chart:
    """Return the latency of each model, a point per machine, on a logarithmic axis; constructed ones are hollow.

    Args:
        title: title of the chart.
        rows: rows with the columns name, machine, latency_s and source, as in `latencies_by_machine`.
        colors: colors of the machines.
    """
    names = list(dict.fromkeys(rows["name"]))
    marks: list[Mark] = []
    for (machine, source), points in rows.dropna(subset=["latency_s"]).groupby(["machine", "source"], sort=False):
        color = colors[str(machine)]
        texts = [f"{row.name}\n{machine}: {fmt.seconds(row.latency_s)}, {source}" for row in fmt.rows(points)]
        marks.append(Curve(points["latency_s"], points["name"].map(names.index),
                           color if source == "measured" else "white", NOT_CONNECTED, marker="o", size=6,
                           edge="white" if source == "measured" else color, texts=texts))
    axis = Axis("latency", None, *ends_around(rows["latency_s"].dropna(), 1.3, 12), log=True, text=fmt.seconds)
    return by_name(title, names, axis, marks)


def normalized_heatmap(title: str, rows: pd.DataFrame) -> Chart:
    """Return constructed over measured latency, a row for each name and a column for each G, with its number.

    The color shows the deviation from 1, on a logarithmic scale, and is full at `_FULL_FRAC`.

    Args:
        title: title of the chart.
        rows: rows with the columns name, g and normalized.
    """
    names, sizes = list(dict.fromkeys(rows["name"])), sorted(rows["g"].unique())
    marks: list[Mark] = []
    for row in fmt.rows(rows.dropna(subset=["normalized"])):
        x, y, color = sizes.index(row.g), names.index(row.name), _deviation_color(row.normalized)
        marks += [Bar(y, x - 0.5, 1, 1, color, "white", f"{row.name}, G = {row.g}: {row.normalized:.3g}"),
                  Note(x, y, f"{row.normalized:.2f}", "center", "center", 9.5, ink_on(color))]
    axis = Axis("G", None, -0.5, len(sizes) - 0.5, ticks=range(len(sizes)),
                names=[f"{g:.0f}" for g in sizes])
    return by_name(title, names, axis, marks)


def _deviation_color(ratio: float) -> str:
    """Return a color between white at 1 and that of ratios below or above 1."""
    depth = min(abs(math.log(ratio)) / math.log(1 + _FULL_FRAC), 1.0)
    full = _BELOW if ratio < 1 else _ABOVE
    parts = (int(full[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(255 + depth * (part - 255)):02X}" for part in parts)


def by_layers(rows: pd.DataFrame) -> Chart:
    """Return the share of each layer type in the constructed latencies, a bar per model."""
    return stacked_bars("Share of each layer type in constructed latencies", rows,
                        ("case", "operator_type", "share_frac"), palette.operator_type, "share of the plain sum",
                        unit=None, row_px=ROW_PX, shorten=short_names)


def counts_by_name(title: str, rows: pd.DataFrame, counts: dict[str, str]) -> Chart:
    """Return overlaid bars per row; `counts` are columns with their colors, largest numbers first."""
    marks = [Bar(y, 0, count, 0.66, color, text=f"{name}: {count:,.0f} {column.removeprefix('num_').replace('_', ' ')}")
             for column, color in counts.items()
             for y, (name, count) in enumerate(zip(rows["name"], rows[column], strict=True))]
    return by_name(title, rows["name"], Axis("how many", whole=True), marks)


NUM_POINTS = 1500
"""Maximum number of points, slowest bricks first; more make a page slow."""


def work(bricks: pd.DataFrame) -> Chart:
    """Return the FLOP of each brick against its time."""
    bricks = bricks[bricks["flop"] > 0].head(NUM_POINTS)
    marks = [
        Curve(rows["flop"], rows["time_s"], palette.operator_type(str(kind)), NOT_CONNECTED, marker="o", edge="white",
              texts=[f"{kind}: {fmt.seconds(row.time_s)}, {fmt.num_flop(row.flop)}" for row in fmt.rows(rows)])
        for kind, rows in bricks.groupby("operator_type", sort=False)
    ]  # fmt: skip
    x = Axis("FLOP of a call (FLOP)", None, *ends_around(bricks["flop"], 1.7), log=True,
             text=lambda value: fmt.num_flop(value).removesuffix("FLOP").strip())
    y = Axis("time", None, *ends_around(bricks["time_s"], 1.7), log=True, text=fmt.seconds)
    return Chart("Time of each brick by FLOP of a call", x, y, marks, 320)
