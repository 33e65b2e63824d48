"""Charts of memory: at the peak, against the input, training over inference, and through one iteration."""

from collections.abc import Callable, Mapping

import pandas as pd

from charact.views.charts import (
    DASHED,
    FAINT,
    INK,
    MIN_SIZES,
    NOT_CONNECTED,
    SOLID,
    Area,
    Axis,
    Chart,
    Curve,
    Mark,
    Note,
    Rule,
    Span,
    stacked_bars,
)
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.memory_text import AXES, size_text

_LIMIT = "#A6461D"
_BANDS, _NARROW_BAND = ((0.04, "#C3CBD4"), (0.12, "#8794A1")), (0.22, "#4A5562")
"""Opacity of a phase's tint and color of its strip, alternating, and of a phase too narrow for its name. Phases have no
colors of their own here, which the areas would hide.
"""
_NAMED_FROM_FRAC = 0.1
"""Minimum share of the axis for the name of a phase."""
_NUM_SNAPSHOTS = 220
"""Maximum number of snapshots that a timeline shows: half as many as it has pixels."""
_NUM_COLUMNS = 80
"""Maximum number of columns of a timeline that show their values on hover."""
_TICKS_FROM_FRAC = 0.12
"""Minimum distance of two ticks as a share of the axis."""
_PREDICTED = Curve([], [], width=1.4, label="predicted")
_UNCERTAIN = Area([], 0, [], INK, 0.22, label="its uncertainty")
_MEASURED = Curve([], [], style=NOT_CONNECTED, marker="o", label="measured")


def at_peak(composition: pd.DataFrame) -> Chart:
    """Return bytes of each category at the peak of each case."""
    predicted = composition["method"] == "predicted"
    labels = composition["case"].where(~predicted, composition["case"] + " (predicted)")
    return stacked_bars("Memory at the peak of an iteration by category", composition.assign(label=labels),
                        ("label", "category", "bytes"), palette.CATEGORIES.__getitem__,
                        "memory at the peak of an iteration", unit="B", row_px=48)


def against_input(title: str, mode: str, rows: pd.DataFrame, limit_bytes: float | None) -> Chart:
    """Return peaks by category against the input of one series: predicted areas, or measured ones without others.

    Measured dots are drawn over predicted areas: black for the peak, small for the top of each category. Fewer than 3
    sizes are bars, since two points show no curve. Rows have input_size, num_positions, position, method, category,
    bytes, low_bytes and high_bytes (of the whole peak).
    """
    if rows["input_size"].nunique() < MIN_SIZES:
        return _size_bars(title, mode, rows)
    predicted, measured = (rows[rows["method"] == method] for method in ("predicted", "measured"))
    held = _held(predicted if len(predicted) else measured, "num_positions")
    dots = _held(measured, "num_positions").reindex(columns=held.columns, fill_value=0.0)
    tops, axis = held.cumsum(axis="columns"), AXES[str(rows["position"].iloc[0])]
    marks: list[Mark] = [
        Area(held.index, tops[name] - held[name], tops[name], palette.CATEGORIES[name], edge="white")
        for name in held.columns]
    marks.append(Curve(held.index, held.sum(axis="columns"), width=1.2, texts=[
        _held_text(f"predicted, {axis} {at:,.0f}", parts) for at, parts in held.iterrows()] if len(predicted) else ()))
    if len(predicted):
        band = predicted.drop_duplicates("num_positions").sort_values("num_positions")
        marks.append(Area(band["num_positions"], band["low_bytes"], band["high_bytes"], INK, _UNCERTAIN.opacity))
        marks += [Curve(dots.index, heights, palette.CATEGORIES[str(name)], NOT_CONNECTED, marker="o", size=4, edge=INK)
                  for name, heights in dots.cumsum(axis="columns").items()]
    marks.append(Curve(dots.index, dots.sum(axis="columns"), style=NOT_CONNECTED, marker="o", texts=[
        _held_text(f"measured, {axis} {at:,.0f}", parts) for at, parts in dots.iterrows()]))
    if limit_bytes is not None and rows["high_bytes"].max() >= limit_bytes:
        marks.append(Rule(limit_bytes, _LIMIT, DASHED))
    key = (_PREDICTED, _UNCERTAIN) if len(predicted) else ()
    return Chart(title, _input_axis(rows), Axis(f"{mode}, peak", "B", low=0), marks, 280,
                 key=(*key, _MEASURED) if len(measured) else key)


def _size_bars(title: str, mode: str, rows: pd.DataFrame) -> Chart:
    """Return a bar of the peak by category for each size and method."""
    several = rows["method"].nunique() > 1
    labels = [size_text(row.position, row.input_size) + (f", {row.method}" if several else "")
              for row in fmt.rows(rows)]
    return stacked_bars(title, rows.assign(label=labels), ("label", "category", "bytes"),
                        palette.CATEGORIES.__getitem__, f"{mode}, peak", unit="B", row_px=48)


def _input_axis(rows: pd.DataFrame) -> Axis:
    """Return the axis of the input, with ticks at the sizes of the rows that are far enough from each other."""
    position = str(rows["position"].iloc[0])
    sizes = rows.drop_duplicates("num_positions").sort_values("num_positions", ascending=False)
    far_enough = _TICKS_FROM_FRAC * sizes["num_positions"].max()
    ticks: list[float] = []
    names: list[str] = []
    for row in fmt.rows(sizes):  # the largest size always has a tick
        if not ticks or ticks[-1] - row.num_positions >= far_enough:
            ticks.append(float(row.num_positions))
            names.append(size_text(position, row.input_size))
    return Axis(AXES[position], ticks=ticks, names=names)


def _held_text(heading: str, parts: "pd.Series[float]") -> str:
    """Return the lines of a heading with the total bytes, and of each category that holds any, largest first."""
    largest = parts[parts > 0].sort_values(ascending=False)
    return "\n".join([f"{heading}: {fmt.num_bytes(parts.sum())}",
                      *(f"{str(name).replace('_', ' ')}: {fmt.num_bytes(size)}" for name, size in largest.items())])


def _held(rows: pd.DataFrame, place: str) -> pd.DataFrame:
    """Return bytes by place and category, without categories that never occur."""
    sizes = rows.pivot_table(index=place, columns="category", values="bytes", aggfunc="sum").fillna(0.0)
    return sizes[[name for name in palette.CATEGORIES if name in sizes and (sizes[name] > 0).any()]]


def ratios(title: str, rows: pd.DataFrame, colors: Mapping[str, str]) -> Chart:
    """Return the peak of training over that of inference against the input; rows have a `label` with a given color.

    Rows also have input_size, num_positions, position, method and ratio.
    """
    marks: list[Mark] = []
    for (label, method), group in rows.groupby(["label", "method"], sort=False):
        is_only = set(rows.loc[rows["label"] == label, "method"]) == {"measured"}
        marks.append(Curve(
            group["num_positions"], group["ratio"], colors[str(label)],
            SOLID if method == "predicted" or is_only else NOT_CONNECTED, marker="" if method == "predicted" else "o",
            texts=[f"{label}, {method}: {fmt.ratio(row.ratio)} at {row.num_positions:,.0f}"
                   for row in fmt.rows(group)]))
    samples = {"predicted": _PREDICTED, "measured": _MEASURED}
    return Chart(title, _input_axis(rows),
                 Axis("training / inference", low=0, high=1.08 * rows["ratio"].max(), always=1),
                 [*marks, Rule(1, FAINT, width=0.8)],
                 key=[sample for method, sample in samples.items() if method in set(rows["method"])])


def peaks(title: str, rows: pd.DataFrame, colors: Mapping[str, str]) -> Chart:
    """Return peaks of training and inference of several series against the input, inference dashed.

    Rows have a `label` with a given color, input_size, num_positions, position, method, train_bytes and infer_bytes.
    """
    modes = {"training": ("train_bytes", SOLID), "inference": ("infer_bytes", DASHED)}
    marks: list[Mark] = []
    for (label, method), group in rows.groupby(["label", "method"], sort=False):
        for mode, (column, style) in modes.items():
            known = group.dropna(subset=[column])
            marks.append(Curve(
                known["num_positions"], known[column], colors[str(label)], style, marker="o", size=4,
                texts=[f"{label}, {mode}, {method}: {fmt.num_bytes(num_bytes)} at {num_positions:,.0f}"
                       for num_bytes, num_positions in zip(known[column], known["num_positions"], strict=True)]))
    return Chart(title, _input_axis(rows), Axis("peak of an iteration", "B", low=0), marks,
                 key=[Curve([], [], FAINT, style, label=mode) for mode, (_, style) in modes.items()])


def timeline(title: str, rows: pd.DataFrame) -> Chart:
    """Return memory of one iteration by category, with bands of its phases and a mark at the peak.

    Rows are those of `memory_timeline` of one case and method: against time if measured, else in order.
    """
    is_timed = bool(rows["time_s"].notna().all())
    rows = rows.assign(at=rows["time_s"] if is_timed else rows["moment"])
    held = _fullest(_held(rows, "at"))
    edges = _edges(held)
    bands = _phase_bands(rows.drop_duplicates("at").set_index("at")["phase"].sort_index(), edges[-1])
    x = Axis("time, measured under the profiler", "s", edges[0], edges[-1]) if is_timed else \
        Axis("allocations and frees in order, predicted", None, edges[0], edges[-1], whole=True)
    heading = "at {}" if is_timed else "after {} allocations and frees"
    marks = [*bands, *_held_marks(held, lambda at: heading.format(fmt.seconds(at) if is_timed else f"{at:,.0f}"))]
    return Chart(title, x, Axis("held", "B", 0, 1.12 * held.sum(axis="columns").max()), marks, 280)


def allocator_curve(title: str, rows: pd.DataFrame) -> Chart:
    """Return allocated and reserved memory over an allocator's history, with a mark at the peak.

    Rows are those of `snapshot_curve` of one case: against time if the history has times, else in order.
    """
    is_timed = bool(rows["time_s"].notna().all())
    rows = rows.assign(at=rows["time_s"] if is_timed else rows["moment"])
    held = _fullest(_held(rows, "at"))
    edges = _edges(held)
    reserved = rows.drop_duplicates("at").set_index("at")["reserved_bytes"].reindex(held.index)
    top_bytes = max(float(held.sum(axis="columns").max()), 0.0 if reserved.isna().all() else float(reserved.max()))
    x = Axis("time since the first event", "s", edges[0], edges[-1]) if is_timed else \
        Axis("moments of the history in order", None, edges[0], edges[-1], whole=True)

    def heading(at: float) -> str:
        known = f", {fmt.num_bytes(reserved[at])} reserved" if pd.notna(reserved[at]) else ""
        return f"{f'at {fmt.seconds(at)}' if is_timed else f'moment {at:,.0f}'}{known}, allocated"

    marks = _held_marks(held, heading)
    key = []
    if reserved.notna().all():
        curve = Curve(edges, [*reserved, reserved.iloc[-1]], _LIMIT, steps="post", label="reserved")
        marks, key = [*marks, curve], [Curve([], [], _LIMIT, label="reserved")]
    return Chart(title, x, Axis("memory", "B", 0, 1.12 * top_bytes or 1), marks, 280, key=key)


def _edges(held: pd.DataFrame) -> list[float]:
    """Return the beginning of each snapshot, and the end of the last one, which is drawn with the average duration."""
    moments = held.index.to_numpy(dtype="float64")
    last = (moments[-1] - moments[0]) / (len(moments) - 1) if len(moments) > 1 else 1.0
    return [*moments, moments[-1] + last]


def _held_marks(held: pd.DataFrame, heading: Callable[[float], str]) -> list[Mark]:
    """Return areas of the categories, a mark at the peak, and texts with a heading for each moment, for the pointer."""
    totals, edges = held.sum(axis="columns").to_numpy(), _edges(held)
    moments = edges[:-1]
    at, peak_bytes = moments[totals.argmax()], totals.max()
    is_late = at - moments[0] > 0.6 * (moments[-1] - moments[0])
    tops = held.cumsum(axis="columns")
    marks: list[Mark] = [
        *(Area(edges, 0, [*tops[name], tops[name].iloc[-1]], palette.CATEGORIES[name], steps="post")
          for name in reversed(tops.columns)),  # each covers the lower part of the one behind it
        Curve([at], [peak_bytes], marker="v", size=7),
        Note(at, peak_bytes, f"peak {fmt.num_bytes(peak_bytes)}", "right" if is_late else "left",
             offset=(-8 if is_late else 8, 4))]
    step = -(-len(held) // _NUM_COLUMNS)
    for start in range(0, len(held), step):  # each column shows the fullest of its snapshots on hover
        fullest = start + int(totals[start : start + step].argmax())
        marks.append(Span(edges[start], edges[min(start + step, len(held))],
                          text=_held_text(heading(moments[fullest]), held.iloc[fullest])))
    return marks


def _fullest(held: pd.DataFrame) -> pd.DataFrame:
    """Return the first snapshot, and of each `_NUM_SNAPSHOTS`-th part of the axis the one that holds most."""
    at = held.index.to_numpy(dtype="float64")
    places = ((at - at[0]) / ((at[-1] - at[0]) or 1.0) * _NUM_SNAPSHOTS).astype(int)
    fullest = held.sum(axis="columns").groupby(places).idxmax()
    return held.loc[sorted({held.index[0], *fullest})]


def _phase_bands(phases: "pd.Series[str]", end_at: float) -> list[Mark]:
    """Return a strip above and a tint behind each run of snapshots in one phase, with its name if there is space."""
    changed = phases.ne(phases.shift()).to_numpy()
    begins = phases.index.to_numpy(dtype="float64")[changed]
    spans: list[Mark] = []
    num_named = 0
    for begin, end, phase in zip(begins, [*begins[1:], end_at], phases[changed], strict=True):
        is_named = pd.notna(phase) and end - begin >= _NAMED_FROM_FRAC * (end_at - phases.index[0])
        opacity, strip = _BANDS[num_named % 2] if is_named else _NARROW_BAND
        num_named += is_named
        spans.append(Span(begin, end, FAINT, opacity, strip, phase if is_named else ""))
    return spans
