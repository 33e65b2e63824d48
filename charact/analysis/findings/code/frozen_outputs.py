"""A model whose weights do not change gets the same inputs again, such as in each epoch."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import share

_MUCH_FRAC = 0.3
"""Minimum share of the input rows that an earlier call had."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for each frozen model of a training that computes many of its outputs more than once."""
    if not case.trains:
        return
    rows = case.run.iterations
    rows = rows[rows["case"] == case.name]
    num_iterations = rows["iteration"].nunique()
    forwards = rows[(rows["phase"] == "forward") & rows["part"].notna()]
    for facts in case.settings.get("models") or []:
        name, num_rows = facts.get("name"), facts.get("num_frozen_rows")
        repeated_frac = (facts.get("num_repeated_rows") or 0) / num_rows if num_rows else 0.0
        if repeated_frac < _MUCH_FRAC:
            continue
        is_own = (forwards["part"] == name) | forwards["part"].str.startswith(f"{name}.")
        spent_s = float(forwards.loc[is_own, "host_s"].sum()) / num_iterations
        saving = case.saving(0.7 * repeated_frac * spent_s, repeated_frac * spent_s)
        if saving is None:
            continue
        line = next((line for line in case.all_lines("forward") if f"{name}(" in (line.place.text or "")), None)
        yield Finding(
            f"{name} computes the same outputs again: its weights do not change, and its inputs are those of earlier "
            "iterations", f"compute the outputs of {name} once before the training, keep them in memory or in a file, "
            "and train on these", saving,
            (f"{share(repeated_frac)} of {num_rows:,} rows of its inputs came in an earlier iteration, and its weights "
             "are the same at the end",), "high", place=line.place if line else None, phase="forward", layer=name)
