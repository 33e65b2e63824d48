"""Scatter plot of bricks: work against time, a point per brick."""

import pandas as pd
import seaborn as sns
from markupsafe import Markup
from matplotlib.figure import Figure

from charact.views.html.elements.bricks import log_ticks
from charact.views.html.elements.drawing import FAINT, HALF_PX, draw_svg
from charact.views.tables import format as fmt
from charact.views.tables import palette

NUM_POINTS = 1500
"""Maximum number of points, slowest bricks first; more make a page slow."""

_ROOM = 1.7
"""Margin between the outermost points and the edges, as a factor."""


def work(bricks: pd.DataFrame) -> Markup:
    """Draw the FLOP of each brick against its time."""
    bricks = bricks[bricks["flop"] > 0].head(NUM_POINTS)

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        ax.set(xscale="log", yscale="log", xlabel="FLOP of a call (FLOP)", ylabel="time")
        for kind, rows in bricks.groupby("operator_type", sort=False):
            ax.plot(rows["flop"], rows["time_s"], "o", color=palette.operator_type(str(kind)), markersize=5,
                    markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip
        for axis, column, text in ((ax.xaxis, "flop", lambda value: fmt.num_flop(value).removesuffix("FLOP").strip()),
                                   (ax.yaxis, "time_s", fmt.seconds)):
            low, high = float(bricks[column].min()) / _ROOM, float(bricks[column].max()) * _ROOM
            axis.set_view_interval(low, high, ignore=True)
            log_ticks(axis, high / low, text)
        ax.tick_params(axis="y", labelsize=11, labelcolor=FAINT)
        sns.despine(ax=ax, left=True, bottom=True)

    return draw_svg("Time of each brick by FLOP of a call", 320, draw, width_px=HALF_PX)
