"""Charts of bars: time by phase, stage and operator type, a row for each name."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pandas as pd

from charact.views.charts import Axis, Bar, Chart, Mark, of_rows, stacked_bars
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.case_names import shared_end

ROW_PX = 17
"""Height of a row in a chart of many names (px)."""
_HEAD, _TAIL = 12, 33
"""Characters kept of the start and end of a long name."""
_PHASES = palette.PHASES.__getitem__


def phases(breakdown: pd.DataFrame) -> list[Chart]:
    """Return the time of each phase per case: absolute, and as shares of the iteration."""
    bars = partial(stacked_bars, frame=breakdown, columns=("case", "phase", "time_s"), color=_PHASES)
    return [bars("Time of an iteration by phase", label="time of an iteration"),
            bars("Share of each phase in an iteration", label="share of the iteration", unit=None)]


def stages(case: str, breakdown: pd.DataFrame) -> list[Chart]:
    """Return the time of each stage's phases for one training: absolute, and as shares of the stage."""
    bars = partial(stacked_bars, frame=breakdown, columns=("stage", "phase", "time_s"), color=_PHASES)
    return [bars(f"Time by stage and phase of {case}", label="time over all epochs"),
            bars(f"Share of each phase in a stage of {case}", label="share of the stage", unit=None)]


def limits(shares: pd.DataFrame) -> Chart:
    """Return the share of each case's iteration by limit."""
    return stacked_bars("Share of an iteration by what limits it", shares, ("case", "limit", "share_frac"),
                        palette.LIMITS.__getitem__, "share of the iteration", unit=None)


def parts(case: str, breakdown: pd.DataFrame) -> Chart:
    """Return the time of each model's phases in an iteration of one case."""
    return stacked_bars(f"Time of an iteration by model of {case}", breakdown, ("part", "phase", "time_s"), _PHASES,
                        "time of an iteration", row_px=48)


def types_by_case(types: pd.DataFrame) -> Chart:
    """Return the share of each operator type in each case, from the rows of `case_operator_types`."""
    return stacked_bars("Time by operator type in each case", types, ("case", "operator_type", "time_s"),
                        palette.operator_type, "share of the iteration, under the profiler", unit=None, row_px=48)


def types_by_phase(types: pd.DataFrame) -> Chart:
    """Return the time of each operator type in each phase of the only case."""
    return stacked_bars("Time by operator type in each phase", types, ("phase", "operator_type", "time_s"),
                        palette.operator_type, "time under the profiler", row_px=34)


def bars_by_name(title: str, rows: pd.DataFrame, value: str, unit: str, label: str,
                 color: Callable[[Any], str]) -> Chart:  # fmt: skip
    """Return a bar per row, named by the column `name`; `color` returns the color of a row."""
    bars = [Bar(y, 0, getattr(row, value), 0.66, color(row),
                text=f"{row.name}: {fmt.quantity(unit)(getattr(row, value))}") for y, row in enumerate(fmt.rows(rows))]
    return by_name(title, rows["name"], Axis(label, unit, 0, float(rows[value].max()) * 1.03 or 1), bars)


def by_name(title: str, names: Iterable[str], axis: Axis, marks: Sequence[Mark]) -> Chart:
    """Return a chart of rows, each with its short name on its left."""
    return of_rows(title, short_names(names), axis, marks, ROW_PX)


def short_names(names: Iterable[str]) -> list[str]:
    """Shorten names: remove the suffix that all share, such as the device, and the middle of long names."""
    names = list(names)
    end = shared_end(names)
    bare = [name.removesuffix(end) for name in names]
    return [name if len(name) <= _HEAD + _TAIL + 1 else f"{name[:_HEAD]}…{name[-_TAIL:]}" for name in bare]
