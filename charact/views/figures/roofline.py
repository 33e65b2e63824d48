"""The roofline: rates of work against its arithmetic intensity, below the ceilings of a device."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd

from charact.views.charts import (
    DOTTED,
    FAINT,
    INK,
    NOT_CONNECTED,
    SOLID,
    Axis,
    Chart,
    Curve,
    Mark,
    Note,
    Style,
    ends_around,
)
from charact.views.tables import format as fmt

_MARGIN, _LEAST_RANGE = 3.0, 300.0
"""Margin around the points as a factor, and minimum range of each axis, to contain a few ticks."""
_HEIGHT_PX = 330
MODES: Mapping[str, str] = {"train": "o", "infer": "s"}
"""Markers of modes."""


@dataclass(frozen=True)
class Roof:
    """The ceilings of a case: best rate of its precision (FLOP/s), bandwidths of memory and caches (B/s)."""

    precision: str
    peak_flop_per_s: float
    bandwidths: tuple[tuple[str, float], ...]
    """Bandwidths by level; the last is memory, which is the bound, and caches are drawn faintly."""


def roofline_figure(title: str, points: pd.DataFrame, colors: Callable[[str], str], roof: Roof) -> Chart:
    """Return points below a roofline, small ones in front.

    Args:
        title: title of the chart.
        points: name, which has a color; text; flop_per_byte and flop_per_s; optionally mode, which has a shape, and
            share_frac, to which the point's area is proportional.
        colors: function from a name to a color.
        roof: ceilings of all points.
    """
    peak, (level, bandwidth) = roof.peak_flop_per_s, roof.bandwidths[-1]
    left, right = ends_around([*points["flop_per_byte"], peak / bandwidth], _MARGIN, _LEAST_RANGE)
    bottom, top = ends_around([*points["flop_per_s"], peak], _MARGIN, _LEAST_RANGE)
    marks: list[Mark] = [_roof(peak, speed, left, right, FAINT, DOTTED, 0.8) for _, speed in roof.bandwidths[:-1]]
    start = 1.5 * max(left, bottom / bandwidth)
    marks += [_roof(peak, bandwidth, left, right, INK, SOLID, 1.6),
              Note(start, bandwidth * start, f"{level} {fmt.byte_rate(bandwidth)}", along="top", color=FAINT,
                   offset=(8, -2)),
              Note(right, peak, f"{roof.precision} {fmt.flop_rate(peak)}", "right", color=FAINT, offset=(-4, 4))]
    sized = points.assign(mode=points.get("mode", "train"), share_frac=points.get("share_frac", _FRAC_OF_DEFAULT))
    for row in fmt.rows(sized.sort_values("share_frac", ascending=False, kind="stable")):
        bound = min(peak, bandwidth * row.flop_per_byte)
        text = (f"{row.text}: {fmt.flop_rate(row.flop_per_s)} at {fmt.number(row.flop_per_byte)} FLOP/byte, "
                f"{fmt.share(row.flop_per_s / bound)} of the roofline")
        size = max(_LEAST_PX, _WHOLE_PX * row.share_frac**0.5)
        marks.append(Curve([row.flop_per_byte], [row.flop_per_s], colors(str(row.name)), NOT_CONNECTED,
                           marker=MODES.get(row.mode, "o"), size=size, edge="white", texts=[text]))
    modes = [mode for mode in MODES if mode in set(sized["mode"])]
    key = [Curve([], [], FAINT, NOT_CONNECTED, marker=MODES[mode], label=mode) for mode in modes]
    return Chart(title, Axis("arithmetic intensity (FLOP/byte)", None, left, right, log=True, text=fmt.number),
                 Axis("achieved (FLOP/s)", None, bottom, top, log=True, text=flop_tick), marks, _HEIGHT_PX, 560,
                 key=key if len(modes) > 1 else ())


_WHOLE_PX, _LEAST_PX = 24, 5
"""Size of a point of the whole iteration, and of the smallest."""
_FRAC_OF_DEFAULT = (8 / _WHOLE_PX) ** 2


def _roof(peak: float, bandwidth: float, left: float, right: float, color: str, style: Style, width: float) -> Curve:
    ridge = peak / bandwidth
    inside = [ridge] if left < ridge < right else []
    intensities = [left, *inside, right]
    return Curve(intensities, [min(peak, bandwidth * at) for at in intensities], color, style, width)


def flop_tick(value: float) -> str:
    """Return a tick of an axis of FLOP or FLOP/s, whose label has the unit."""
    return fmt.num_flop(value).removesuffix("FLOP").strip()
