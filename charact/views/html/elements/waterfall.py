"""Waterfall figure: the steps from one time to another."""

from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from charact.views.html.elements.drawing import FAINT, HALF_PX, INK, draw_svg, unit_axis
from charact.views.tables import format as fmt
from charact.views.tables import palette

_LONGEST_NAME = 48
_ROW_PX = 40
_BEHIND_TEXT: Any = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
"""Background box that keeps text readable over lines."""


def waterfall(title: str, steps: pd.DataFrame, labels: tuple[str, str]) -> Markup:
    """Draw steps from the baseline's time to the candidate's, named by `labels`; slower steps point to the right.

    The axis does not begin at 0: compare lengths of steps, not the two end lines.
    """
    ends_s = [steps["start_s"].iloc[0], steps["end_s"].iloc[-1]]
    places = [*steps["start_s"], *steps["end_s"]]
    room_s = 0.12 * (max(places) - min(places)) or 0.1 * max(places) or 1.0
    middle_s = (max(places) + min(places)) / 2
    count = len(steps)

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        for label, end_s, height in zip(labels, ends_s, (-1.25, count - 0.3), strict=True):
            ax.axvline(end_s, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
            ax.text(end_s, height, f" {_short(label)}: {fmt.seconds(end_s)} ", va="center", fontsize=11, color=FAINT,
                    ha="left" if end_s < middle_s else "right")  # fmt: skip
        for position, row in enumerate(fmt.rows(steps)):
            color = palette.SLOWER if row.delta_s > 0 else palette.FASTER
            ax.barh(position, row.delta_s, left=row.start_s, height=0.36, color=color, linewidth=0)
            ax.plot([row.end_s, row.end_s], [position, min(position + 1, count - 0.7)], color=color, linewidth=1)
            ax.text(0, position - 0.28, f"{_short(row.name)}  {fmt.change(row.delta_s)}", ha="left", va="bottom",
                    fontsize=11, color=INK, transform=_across(ax), bbox=_BEHIND_TEXT)  # fmt: skip
        ax.set_yticks([])
        ax.set_ylim(count + 0.1, -1.6)
        ax.set_xlim(min(places) - room_s, max(places) + room_s)
        ax.grid(visible=False, axis="y")
        unit_axis(ax, max(places), "s", "median iteration")
        sns.despine(ax=ax, left=True, bottom=True)

    return draw_svg(title, 60 + _ROW_PX * (count + 1), draw, width_px=HALF_PX)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _across(ax: Axes) -> Any:
    """Return a transform: horizontally a share of the axes, vertically data."""
    return mpl.transforms.blended_transform_factory(ax.transAxes, ax.transData)
