"""Evaluation takes much of the time."""

from collections.abc import Iterator

import pandas as pd

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share

_MUCH_FRAC = 0.1
_OFTEN_FRAC = 0.2
"""Share of the training's iterations with inferences before them from which these belong to the training's steps."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if the program trains, and inference takes a tenth or more of its loop.

    Inference before many of the training's iterations is no evaluation, but a part of them: the choice of an action, or
    the outputs of a teacher.
    """
    rows = case.run.program_iterations
    if case.trains or not case.trainings or _alternates(rows, case.name, case.trainings):
        return
    spent_s = float(rows.loc[rows["case"] == case.name, "wall_s"].sum())
    if spent_s < _MUCH_FRAC * case.loop_s:
        return
    saving = case.saving_in_all(0.4 * spent_s, 0.9 * spent_s, "bound")
    if saving is None:
        return
    line = next(iter(case.lines("other") + case.lines("forward")), None)
    yield Finding(
        f"evaluation takes {share(spent_s / case.loop_s)} of the loop",
        "evaluate less often, on a part of the data, or with larger batches", saving,
        (f"{case.num_iterations:,} evaluation batches take {quantity(spent_s, 's')} of {quantity(case.loop_s, 's')}",),
        "medium", place=line.place if line else None, phase="forward", setting="evaluation")


def _alternates(rows: pd.DataFrame, name: str, trainings: set[str]) -> bool:
    """Return whether iterations of a case come directly before many of those of the trainings."""
    ordered = rows.sort_values("index")
    trains = ordered["case"].isin(trainings)
    return bool((ordered["case"].shift() == name)[trains].mean() > _OFTEN_FRAC)
