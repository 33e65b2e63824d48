"""Iterations get longer while the program runs."""

from collections.abc import Iterator

import pandas as pd

from charact.analysis.findings._finding import Finding, Saving
from charact.analysis.findings._slow_groups import num_elements
from charact.analysis.findings._trend import Trend, steady_growth
from charact.analysis.findings._watched_case import LEAST_FRAC, WatchedCase
from charact.core.units import quantity
from charact.record.schema import PHASES

_LEAST_GROWTH_FRAC = 0.5
"""Least growth of a phase from the first iteration to the last, as a share of its first value."""
_LEAST_RATIO = 1.3
"""Least ratio of its last to its first third, over that of the phase that grows least: a slower machine slows all."""
_MAIN_FRAC = 0.02
"""Minimum share of the iteration of the phases with which it is compared."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for the phase that grows most."""
    rows = case.iterations
    rows = rows[rows["kind"] == "timed"].set_index("index")
    grown: list[tuple[float, str, Trend]] = []
    for phase in PHASES:
        line = steady_growth(rows[f"{phase}_s"].fillna(0.0), LEAST_FRAC * case.iteration_s)
        if line is not None and line.growth >= _LEAST_GROWTH_FRAC * line.start and _grows_most(rows, phase):
            grown.append((line.growth / 2, phase, line))
    if not grown or _inputs_grow(case):
        return
    mean_growth_s, phase, line = max(grown)
    total_s = sum(each for each, _, _ in grown)
    saving = case.saving(0.5 * mean_growth_s, 1.1 * total_s)
    if saving is None:
        return
    others = ", ".join(name for _, name, _ in sorted(grown, reverse=True)[1:])
    evidence = [f"{phase} grows by {quantity(line.slope, 's')} ({quantity(line.low, 's')} to "
                f"{quantity(line.high, 's')}) an iteration: from {quantity(max(line.start, 0.0), 's')} to "
                f"{quantity(line.start + line.growth, 's')} over {line.num_iterations} iterations"
                + (f"; so do {others}" if others else "")]
    yield _finding(case, phase, saving, evidence)


def _grows_most(rows: pd.DataFrame, phase: str) -> bool:
    """Return whether a phase grows clearly more than another phase of the iterations."""
    first, last = rows.iloc[:len(rows) // 3], rows.iloc[-(len(rows) // 3):]

    def ratio(name: str) -> float:
        return float(last[f"{name}_s"].median() / max(first[f"{name}_s"].median(), 1e-9))

    others = [ratio(other) for other in PHASES if other not in (phase, "data", "other")
              and first[f"{other}_s"].median() > _MAIN_FRAC * first["wall_s"].median()]
    return not others or ratio(phase) >= _LEAST_RATIO * max(min(others), 1.0)


def _inputs_grow(case: WatchedCase) -> bool:
    """Return whether later inputs are larger: then later iterations have more to do."""
    numels = case.iterations["input_shapes"].map(num_elements).dropna()
    halves = numels.iloc[:len(numels) // 2], numels.iloc[len(numels) // 2:]
    return len(numels) > 1 and halves[1].median() > 1.2 * halves[0].median()


def _finding(case: WatchedCase, phase: str, saving: Saving, evidence: list[str]) -> Finding:
    if (grown := _grown(case, "hooks", evidence)) is not None:
        return Finding(f"{phase} gets longer with every iteration: hooks accumulate on {grown}",
                       "register each hook once, before the loop, or remove it: handle.remove()", saving,
                       tuple(evidence), phase=phase, layer=grown, setting="hooks", covers=frozenset({"hooks"}))
    place = next((line.place for line in case.lines(phase)), None)
    if phase in ("forward", "backward", "update") and (grown := _grown(case, "modules", evidence)) is not None:
        return Finding(f"{phase} gets longer with every iteration: {grown} gets more and more modules",
                       "add modules once, before the loop; replace those of earlier iterations instead of wrapping "
                       "them again", saving, tuple(evidence), place=place, phase=phase, layer=grown)
    causes = {
        "backward": ("it goes through the autograd graph of earlier iterations again",
                     "detach tensors that are carried over to the next iteration: hidden.detach(), loss.item()"),
        "forward": ("it reads something that grows, such as a list, a cache or an autograd graph",
                    "limit the size of lists and caches that iterations add to, and detach carried-over tensors"),
        "update": ("the optimizer gets more and more parameters or groups",
                   "add parameters and parameter groups once, before the loop"),
        "data": ("each fetch searches or copies more data",
                 "index the data instead of searching or copying all of it"),
    }  # fmt: skip
    cause, remedy = causes.get(phase, ("iterations read something that grows, such as a list of results",
                                       "limit the size of lists that iterations add to, and compute results once, at "
                                       "the end"))
    return Finding(f"{phase} gets longer with every iteration: {cause}", remedy, saving,
                   tuple(evidence), place=place, phase=phase)


def _grown(case: WatchedCase, what: str, evidence: list[str]) -> str | None:
    """Return the name of the model with many more hooks or modules than at its first call, and add the evidence."""
    first, last = f"num_{what}_first", f"num_{what}_last"
    grown = [model for model in case.settings.get("models", [])
             if (model.get(last) or 0) > (model.get(first) or 0) + 10]
    if not grown:
        return None
    model = max(grown, key=lambda each: each[last])
    evidence.append(f"{model['name']} had {model[first]} {what} at its first call and has {model[last]} at the end")
    return str(model["name"])
