"""Charts of operations: rates by size, time and rate by problem, sparse against dense products."""

from collections.abc import Sequence

import pandas as pd

from charact.views.charts import (
    FAINT,
    NOT_CONNECTED,
    TRACK,
    Axis,
    Chart,
    Curve,
    Mark,
    Note,
    Rule,
    ends_around,
    of_rows,
    percent,
    stacked_bars,
)
from charact.views.figures.roofline import Roof, flop_tick, roofline_figure
from charact.views.tables import format as fmt
from charact.views.tables import palette

_HEIGHT_PX = 330


def _dots(x: "pd.Series[float]", y: "pd.Series[float]", color: str, texts: Sequence[str]) -> Curve:
    return Curve(x, y, color, NOT_CONNECTED, marker="o", size=8, edge="white", texts=texts)


def rates(title: str, times: pd.DataFrame, roof: Roof | None) -> list[Chart]:
    """Return achieved rates of problems with FLOP: by arithmetic intensity if there is a roofline, and by FLOP."""
    points = times.dropna(subset=["flop_per_byte", "flop_per_s"])
    if points.empty:
        return []
    marks: list[Mark] = [
        _dots(rows["flop"], rows["flop_per_s"], palette.operation(str(name)),
              [f"{row.problem}: {fmt.flop_rate(row.flop_per_s)}, {fmt.num_flop(row.flop)}" for row in fmt.rows(rows)])
        for name, rows in points.groupby("operation", sort=False)
    ]  # fmt: skip
    peaks = [] if roof is None else [roof.peak_flop_per_s]
    x, y = (Axis(label, None, *ends_around(values, 2, 100), log=True, text=flop_tick) for label, values in (
        ("FLOP of a call", points["flop"]), ("achieved (FLOP/s)", [*points["flop_per_s"], *peaks])))
    by_size = Chart(f"{title} by size", x, y, [*marks, *(Rule(peak, width=1.6) for peak in peaks)], _HEIGHT_PX)
    if roof is None:
        return [by_size]
    named = points.assign(name=points["operation"], text=points["problem"]).drop(columns="share_frac", errors="ignore")
    return [roofline_figure(f"{title} below the roofline", named, palette.operation, roof), by_size]


def by_problem(title: str, times: pd.DataFrame) -> list[Chart]:
    """Return the time of each problem by direction, and the rate of each direction."""
    column, unit = ("flop_per_s", "FLOP/s") if times["flop_per_s"].notna().any() else ("bytes_per_s", "B/s")
    names, marks = list(times["label"].unique()), list[Mark]()
    for y, (label, of_problem) in enumerate(times.groupby("label", sort=False)):
        marks.append(Curve([0, of_problem[column].max()], [y, y], TRACK, width=2))
        for direction, rows in of_problem.groupby("direction", sort=False):
            texts = [f"{label}, {fmt.DIRECTIONS[str(direction)]}: {fmt.quantity(unit)(rate)}" for rate in rows[column]]
            marks.append(_dots(rows[column], pd.Series(y, rows.index), palette.DIRECTIONS[str(direction)], texts))
    axis = Axis("achieved", unit, 0, float(times[column].max()) * 1.06 or 1)
    return [stacked_bars(f"{title}: time by problem", times, ("label", "direction", "median_s"),
                         palette.DIRECTIONS.__getitem__, "time", row_px=44),
            of_rows(f"{title}: rate by problem", names, axis, marks, 44)]


def sparse_against_dense(title: str, speeds: pd.DataFrame, crossovers: pd.DataFrame) -> Chart:
    """Return time of sparse products of one size over the dense one's by density, a line per layout.

    Thin lines show the range of a ratio; crossovers are drawn with their ranges.
    """
    marks: list[Mark] = [
        Curve(rows["density_frac"], rows["ratio"], palette.LAYOUTS[str(layout)], width=1.3, marker="o", size=4,
              low=rows["low"], high=rows["high"],
              texts=[f"{layout} at {fmt.share(row.density_frac)}: {fmt.ratio(row.ratio)} the dense product’s time"
                     for row in fmt.rows(rows)])
        for layout, rows in speeds.groupby("layout", sort=False)
    ]  # fmt: skip
    marks.append(Rule(1, width=1.4))
    for row in fmt.rows(crossovers):
        marks += [Curve([row.from_density_frac, row.to_density_frac], [1, 1], width=6, opacity=0.25),
                  Curve([row.crossover_density_frac], [1], marker="D", size=6, edge="white")]
    x = Axis("density (share of numbers that are not zero)", None, *ends_around(speeds["density_frac"], 2, 100),
             log=True, text=percent)
    y = Axis("time, sparse / dense", None, *ends_around([1.0, *speeds["ratio"]], 2, 100), log=True,
             text=lambda value: f"× {value:g}")
    assert y.high is not None
    size = Note(0, y.high, speeds["size"].iloc[0], color=FAINT, of_width=True)
    return Chart(title, x, y, [*marks, size], _HEIGHT_PX)
