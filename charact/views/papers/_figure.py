"""What a figure for a paper is, the search for all figures, and what they share: style, axes and names of cases."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from charact.analysis.common.machine_names import device_text
from charact.analysis.common.pass_status import pass_reason
from charact.core.plugins import modules_in
from charact.core.units import scale
from charact.record.reader import Run
from charact.views.charts import FAINT, INK
from charact.views.tables.case_names import short_names

LABEL_PT, TICK_PT = 8, 7
"""Sizes of the text: those of captions and footnotes in papers of two columns."""
LONGEST_NAME = 26
"""Maximum number of characters of a case's name next to an axis."""
_HEAD = 9
"""Characters kept of the start of a longer name."""
_NUM_TICKS = 4
_FEW_DECADES = 300
"""Largest quotient of an axis's ends at which 2 and 5 times a power of ten also have ticks."""
_SECONDS_PER_HOUR = 3600
_LABEL_APART_FRAC = 0.16
"""Minimum distance of two labels of sizes, as a share of the axis."""


class NoData(Exception):
    """A figure cannot be drawn: the runs lack its data. The message is the reason."""


class Drawing(NamedTuple):
    """A drawn figure, with the sentences that define what it shows."""

    figure: Figure
    caption: str


@dataclass(frozen=True)
class PaperFigure:
    """A figure for papers.

    Each file in `views/papers/` defines one in a variable `FIGURE`.
    """

    name: str
    """Part of the file's name."""
    order: int
    """Position among the captions, ascending."""
    draw: Callable[[Sequence[Run], float], Drawing]
    """Draws the figure of runs at a width (in). Raises `NoData` if the runs lack its data."""


def all_figures() -> list[PaperFigure]:
    """Return all figures in their order."""
    return sorted((module.FIGURE for module in modules_in("charact.views.papers")), key=lambda figure: figure.order)


def style() -> Any:
    """Return the settings of matplotlib for papers: seaborn's ticks, small text, and text that stays text."""
    return {
        **mpl.rcParamsDefault, **sns.axes_style("ticks"), "backend": mpl.get_backend(auto_select=False) or "agg",
        "font.size": LABEL_PT, "axes.labelsize": LABEL_PT, "axes.titlesize": LABEL_PT, "legend.fontsize": TICK_PT,
        "legend.title_fontsize": TICK_PT, "xtick.labelsize": TICK_PT, "ytick.labelsize": TICK_PT,
        "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5,
        "ytick.major.size": 2.5, "lines.linewidth": 1, "lines.markersize": 3.5, "legend.frameon": False,
        "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": FAINT,
        "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False, "text.usetex": False,
        "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "charact", "savefig.dpi": 300,
    }  # fmt: skip


def panels(width_in: float, height_in: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """Return a figure of that size with an array of axes, one row and column for each panel."""
    layout = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.04, hspace=0.03, wspace=0.03)
    figure = Figure((width_in, height_in), layout=layout)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def of_runs(runs: Sequence[Run], analysis: Callable[[Run], pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of an analysis of all runs, with the column run, its path."""
    frames = [rows.assign(run=str(run.path)) for run in runs if len(rows := analysis(run))]
    return pd.concat(frames, ignore_index=True) if frames else analysis(runs[0]).assign(run=pd.Series(dtype="str"))


def timed(rows: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """Return the rows of cases with a timing pass: times of predictions and of bricks are no iterations of it."""
    keys = {(str(run.path), entry.case) for run in runs for entry in run.entries_with("timing")}
    return rows.loc[np.array([key in keys for key in zip(rows["run"], rows["case"], strict=True)], dtype=bool)]


def with_labels(rows: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """Return rows with the column label, a short and unique name for each run and case: only what differs.

    Cases of one name in several runs are numbered in the order of the runs.
    """
    keys = list(dict.fromkeys(zip(rows["run"], rows["case"], strict=True)))
    names = {case for _, case in keys}
    cases = {case["case"]: case for run in runs for case in run.manifest["cases"] if case["case"] in names}
    shorter = short_names([case | {"variant": None} for case in cases.values()])
    if set(shorter) == set(shorter.values()):  # variants may distinguish them
        shorter = short_names(list(cases.values()))
    labels = dict(zip(keys, unique([shorter[case] for _, case in keys]), strict=True))
    return rows.assign(label=[labels[key] for key in zip(rows["run"], rows["case"], strict=True)])


def unique(names: Iterable[str]) -> list[str]:
    """Return names without the middle of long ones; equal ones are numbered."""
    cut = [name if len(name) <= LONGEST_NAME else f"{name[:_HEAD]}…{name[_HEAD + 1 - LONGEST_NAME:]}" for name in names]
    seen: Counter[str] = Counter()
    numbered = []
    for name in cut:
        seen[name] += 1
        numbered.append(f"{name} ({seen[name]})" if cut.count(name) > 1 else name)
    return numbered


def why_not_taken(runs: Sequence[Run], name: str) -> str:
    """Return why no case has data from a pass."""
    reasons = [pass_reason(run, entry.case, name) or "the record has no data" if name in entry.passes
               else entry.reason or f"the {name} pass was not taken" for run in runs for entry in run.entries]
    return "; ".join(dict.fromkeys(reasons))


def measured_on(runs: Sequence[Run]) -> str:
    """Return a sentence that names the machines and the versions of PyTorch."""
    machines = dict.fromkeys(device_text(run) or "a machine that the record does not name" for run in runs)
    versions = dict.fromkeys(filter(None, (run.manifest.get("software", {}).get("torch") for run in runs)))
    with_torch = f" with PyTorch {', '.join(versions)}" if versions else ""
    return f"Machine: {'; '.join(machines)}{with_torch}."


def times_a_case(numbers: Iterable[float | None], what: str) -> str:
    """Return how many there are for each case: '6 to 12 timed iterations a case'; without numbers, only `what`."""
    known = sorted({int(number) for number in numbers if number is not None and not pd.isna(number)})
    if not known:
        return f"{what} (the record has no number of them)"
    return f"{known[0]} {what} a case" if len(known) == 1 else f"{known[0]} to {known[-1]} {what} a case"


def label_axis(axis: Axis, quantity: str, unit: str, low: float, high: float) -> None:
    """Label an axis, and write its ticks in the multiple of a base unit that fits the highest value.

    Ticks are round in that multiple: on a logarithmic axis times a power of ten, or of two in bytes.
    """
    factor, scaled_unit = scale([high], unit)
    if unit == "s" and high >= 2 * _SECONDS_PER_HOUR:
        factor, scaled_unit = 1 / _SECONDS_PER_HOUR, "h"
    locator: mpl.ticker.Locator = mpl.ticker.MaxNLocator(_NUM_TICKS)
    if axis.get_scale() == "log":
        steps = (1, 2, 5) if high / low < _FEW_DECADES else (1,)
        locator = mpl.ticker.LogLocator(2) if unit == "B" else mpl.ticker.LogLocator(10, steps)
    ticks = np.asarray(locator.tick_values(low * factor, high * factor)) / factor
    axis.set_label_text(f"{quantity} ({scaled_unit})")
    axis.set_major_locator(mpl.ticker.FixedLocator(list(ticks)))
    axis.set_minor_locator(mpl.ticker.NullLocator())
    axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value * factor:g}"))


def on_diagonal(ax: Axes, x: str, y: str, unit: str, low: float, high: float) -> None:
    """Prepare logarithmic axes of one unit with equal ends, and draw the line on which both values are equal."""
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    ax.plot([low, high], [low, high], color=FAINT, linewidth=0.6, zorder=0)
    label_axis(ax.xaxis, x, unit, low, high)
    label_axis(ax.yaxis, y, unit, low, high)


def ticks_at_sizes(ax: Axes, places: Iterable[float], names: Iterable[str]) -> None:
    """Set a tick at each measured size; sizes too close to a larger one have no label."""
    known = sorted(dict(zip(places, names, strict=True)).items(), reverse=True)
    at = np.array([place for place, _ in known], dtype="float64")
    along = np.log(at) if ax.get_xscale() == "log" else at
    apart = _LABEL_APART_FRAC * (along.max() - along.min())
    labelled: list[int] = []
    for number, place in enumerate(along):
        if not labelled or along[labelled[-1]] - place >= apart:
            labelled.append(number)
    ax.xaxis.set_major_locator(mpl.ticker.FixedLocator(list(at)))
    ax.xaxis.set_major_formatter(mpl.ticker.FixedFormatter(
        [name if number in labelled else "" for number, (_, name) in enumerate(known)]))
    ax.xaxis.set_minor_locator(mpl.ticker.NullLocator())


def key_below(figure: Figure, handles: Sequence[Line2D], num_columns: int) -> None:
    """Write a key below all panels."""
    figure.legend(handles=handles, loc="outside lower center", ncols=num_columns, handlelength=1.4, columnspacing=1.0,
                  handletextpad=0.4, borderpad=0.1)
