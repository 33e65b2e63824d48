"""Findings about long programs: iterations that get slower after many thousands."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from charact.analysis.findings._finding import Confidence, Finding, Saving
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.statistics import consecutive_correlation
from charact.core.units import quantity, share
from charact.record.schema import PHASES

_FEWEST_WINDOWS = 40
_LEAST_SIDE, _LEAST_SIDE_FRAC = 12, 0.05
"""Minimum number of windows before and after a slow-down, and their minimum share of all."""
_LEAST_FRAC = 0.05
"""Minimum slow-down of the median window."""
_LEAST_ERRORS = 4.5
"""Minimum slow-down, in standard errors: the best split of noise alone has more in some 1 % of programs."""
_LARGEST_CORRELATION = 0.99
_FAR = 4.0
"""Distance from the level, in standard deviations, from which a window counts as if it were at this distance."""
_TO_99_PERCENT, _TO_DEVIATION = 2.576, 1.4826
"""Half-width of a 99 % interval in standard errors, and standard deviation over median absolute deviation."""

Values = npt.NDArray[np.float64]


class _SlowDown(NamedTuple):
    """The position of the first slower window, the ratio of the medians after and before, and its 99 % interval."""

    position: int
    ratio: float
    low: float
    high: float


def late_slow_down(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if iterations get slower at some time and stay so to the end, with the phase that grows most."""
    windows = case.windows
    slowing = _slow_down(windows["median_s"].to_numpy(dtype=float))
    if slowing is None:
        return
    before, after = windows.iloc[:slowing.position], windows.iloc[slowing.position:]
    phase = _grown_phase(case, windows["window"].iloc[slowing.position])
    before_s, after_s = float(before["median_s"].median()), float(after["median_s"].median())
    extra_s = float((after["sum_s"] - after["num_iterations"] * before["sum_s"].sum()
                     / before["num_iterations"].sum()).sum())
    at_s, num_before = float(after["start_s"].iloc[0]), int(after["num_before"].iloc[0])
    time = quantity(at_s, "s") if at_s < 3600 else f"{at_s / 3600:,.1f} hours"
    evidence = (f"after {time} and {num_before:,} iterations, the median time of an iteration rises from "
                f"{quantity(before_s, 's')} to {quantity(after_s, 's')}, by {share(slowing.ratio - 1)} (99 % interval "
                f"{share(slowing.low - 1)} to {share(slowing.high - 1)})",
                f"compared are the medians of {len(before):,} windows of time before and {len(after):,} after")
    confidence: Confidence = "high" if slowing.low - 1 >= _LEAST_FRAC else "medium"
    yield Finding(
        f"iterations get slower by {share(slowing.ratio - 1)} after {num_before:,} iterations, most of it in {phase}, "
        "and stay so to the end",
        "look for what begins or fills up at that time: lists, caches and hooks that grow, a larger validation, a full "
        "disk or page cache, other programs; compare two parts with charact run --skip",
        Saving(0.3 * extra_s, extra_s), evidence, confidence, phase=phase, covers=frozenset({"time_trend"}))


def _slow_down(medians_s: Values) -> _SlowDown | None:
    """Return the slow-down that lasts to the end of a series of medians; None without one.

    Consecutive windows resemble each other, so the standard error is raised by their correlation.
    """
    least = max(_LEAST_SIDE, round(_LEAST_SIDE_FRAC * len(medians_s)))
    if len(medians_s) < max(_FEWEST_WINDOWS, 2 * least) or medians_s.min() <= 0:
        return None
    logs, position = np.log(medians_s), _split(medians_s, least)
    before, after = logs[:position], logs[position:]
    step = float(np.median(after) - np.median(before))
    lasting = float(np.median(after[-max(least, len(after) // 4):]) - np.median(before))
    if step < math.log1p(_LEAST_FRAC) or lasting < step / 2:
        return None
    deviations = np.concatenate([before - np.median(before), after - np.median(after)])
    far = _FAR * _TO_DEVIATION * float(np.median(np.abs(deviations)))
    deviations = deviations.clip(-far, far)
    correlation = consecutive_correlation(deviations.tolist(), 2, largest=_LARGEST_CORRELATION)
    error = float(deviations.std()) * math.sqrt(
        (1 + correlation) / (1 - correlation) * (1 / len(before) + 1 / len(after)))
    if step < _LEAST_ERRORS * error:
        return None
    low, high = (math.exp(step + sign * _TO_99_PERCENT * error) for sign in (-1, 1))
    return _SlowDown(position, math.exp(step), low, high)


def _split(medians_s: Values, least: int) -> int:
    """Return the position that divides the ranks of a series best, with at least so many values on each side."""
    ranks = pd.Series(medians_s).rank().to_numpy()
    counts = np.arange(1, len(ranks))
    means = np.cumsum(ranks)[:-1] / counts
    rest = (ranks.sum() - np.cumsum(ranks)[:-1]) / (len(ranks) - counts)
    gains = counts * (len(ranks) - counts) * (rest - means) ** 2
    return int(np.argmax(gains[least - 1:len(ranks) - least])) + least


def _grown_phase(case: WatchedCase, window: int) -> str:
    """Return the phase whose mean time grows most from the windows before one to the others."""
    rows = case.run.windows
    rows = rows[(rows["case"] == case.name) & rows["phase"].notna()]
    is_after = rows["window"] >= window
    means = {after: of_side.groupby("phase")["sum_s"].sum() / of_side.groupby("phase")["num_iterations"].sum()
             for after, of_side in rows.groupby(is_after)}
    growth = means[True].sub(means[False], fill_value=0.0).reindex(list(PHASES)).dropna()
    return str(growth.idxmax())
