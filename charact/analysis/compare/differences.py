"""Causes of the time difference of a case between two groups of runs: phases, operators, layers and kernels."""

import pandas as pd

from charact.analysis.compare.matching import Group
from charact.analysis.compare.operator_shares import PART, Composition, compositions
from charact.core.operator_types import OUTSIDE_OPERATORS
from charact.record.schema import PHASES

LEVELS = ("phase", "operator", "layer", "kernel")
"""Levels of detail of a difference."""
NUM_STEPS = 8
"""Number of operators with a step of their own."""

_COLUMNS = ["level", "phase", "operator", "layer", "name", "base_s", "new_s", "delta_s", "status", "detail"]


def differences(base: Group, new: Group, case: str) -> pd.DataFrame:
    """Return the parts of the difference between the medians of a case; empty if a group has no times of it.

    The case is named as in `matched_cases` of the two groups.

    Columns: level, of `LEVELS` ('layer': an operator within a layer); phase; operator, null for whole phases; layer,
    null at other levels, empty for calls in no layer; name, of the phase, operator or kernel; base_s, new_s, 0 if it
    did not run; delta_s = new_s - base_s; status: 'both', 'appeared', 'vanished', or, for an operator in both groups,
    'kernel changed' (other kernels launched), 'shapes changed' (other input shapes in the same layer) or 'calls
    changed'; detail, a text with the change, null if there is none. Phases are in order, other rows by the size of
    delta_s.

    The phases sum to the difference of the medians. If both groups have operators, the operators of a phase and
    `OUTSIDE_OPERATORS` (on a device, the time without a kernel) sum to the phase. Kernels are parts of their operators,
    and so are the rows by layer.

    *Error*: as of `Composition.operators`. `ratios` shows which differences are significant.
    """
    of_side = compositions([base, new], {case}).get(case, {})
    if len(of_side) < 2:
        return pd.DataFrame(columns=_COLUMNS)
    sides = [of_side[side.label] for side in (base, new)]
    phases, operators = [side.phases for side in sides], [side.operators for side in sides]
    rows = _merged([parts.rename("time_s").reset_index() for parts in phases], ["phase"])
    if all(map(len, operators)):
        covered = set().union(*(parts["phase"] for parts in operators))
        whole = [_whole(parts, covered, known) for parts, known in zip(phases, operators, strict=True)]
        rows = pd.concat([rows, _merged(whole, PART)], ignore_index=True)
    rows = rows.reindex(columns=[*PART, "base_s", "new_s", "delta_s", "status"])
    rows = rows.astype({"operator": "str", "layer": "str", "kernel": "str"}).assign(level="phase")
    for level in LEVELS[1:]:
        rows["level"] = rows["level"].mask(rows[level].notna(), level)
    rows["name"] = rows["kernel"].fillna(rows["operator"]).fillna(rows["phase"])
    rows = _with_changes(rows, sides)
    rank = rows["level"].map(LEVELS.index)
    place = rows["phase"].map(PHASES.index).where(rank == 0, -rows["delta_s"].abs())
    return rows.assign(rank=rank, place=place).sort_values(["rank", "place"], ignore_index=True)[_COLUMNS]


def _whole(phases: "pd.Series[float]", covered: set[str], operators: pd.DataFrame) -> pd.DataFrame:
    """Return a group's operators; a phase without operators here becomes one row outside operators."""
    others = covered - set(operators["phase"])
    outside = [{"phase": phase, "operator": OUTSIDE_OPERATORS, "time_s": phases[phase]}
               for phase in phases.index if phase in others]
    return pd.concat([operators, pd.DataFrame(outside, columns=[*PART, "time_s"])]) if outside else operators


def _merged(sides: list[pd.DataFrame], keys: list[str]) -> pd.DataFrame:
    base, new = (frame.rename(columns={"time_s": name}) for frame, name in zip(sides, ("base_s", "new_s"), strict=True))
    rows = base.merge(new, on=keys, how="outer", indicator="status")
    rows["status"] = rows["status"].astype("str").replace({"left_only": "vanished", "right_only": "appeared"})
    return rows.fillna({"base_s": 0.0, "new_s": 0.0}).assign(delta_s=lambda frame: frame["new_s"] - frame["base_s"])


def _with_changes(rows: pd.DataFrame, sides: list[Composition]) -> pd.DataFrame:
    """Set status and detail of operators in both groups with other kernels, shapes or numbers of calls."""
    shapes, kernels, calls = ([getattr(side, what) for side in sides] for what in ("shapes", "kernels", "calls"))
    changes: list[tuple[str, str | None]] = []
    for row in rows.to_dict("records"):
        place = row["phase"], row["operator"]
        changes.append((row["status"], None))
        if row["level"] != "operator" or row["status"] != "both":
            continue
        for status, of_sides in (("calls changed", calls), ("kernel changed", kernels), ("shapes changed", shapes)):
            if detail := _change(*(of_side.get(place, {}) for of_side in of_sides)):
                changes[-1] = (status, detail)
    rows[["status", "detail"]] = pd.DataFrame(changes, columns=["status", "detail"], dtype="str", index=rows.index)
    return rows


def _change(base: dict[str, set[str]], new: dict[str, set[str]]) -> str | None:
    changed = [layer for layer in base if layer in new and base[layer] != new[layer]]
    if not changed:
        return None
    layer = changed[0]
    before, after = (", ".join(sorted(values)) or "none" for values in
                     (base[layer] - new[layer], new[layer] - base[layer]))
    more = f"; {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"{f'layer {layer}: ' if layer else ''}{before} → {after}{more}"


def main_parts(differences: pd.DataFrame) -> pd.DataFrame:
    """Return, for each phase, the operator within a layer that changed most in the phase's direction.

    Columns: phase; operator, `OUTSIDE_OPERATORS` for time in no operator; layer, empty for none; delta_s.

    *Error*: calls of an operator within one layer vary less than all its calls together. `ratios` shows whether the
    phase changed significantly.
    """
    phases = differences[differences["level"] == "phase"].set_index("phase")["delta_s"]
    outside = (differences["level"] == "operator") & (differences["operator"] == OUTSIDE_OPERATORS)
    parts = differences[(differences["level"] == "layer") | outside].fillna({"layer": ""})
    parts = parts[parts["delta_s"] * parts["phase"].map(phases).astype("float64") > 0]
    largest = parts.loc[parts.groupby("phase")["delta_s"].apply(lambda deltas: deltas.abs().idxmax())]
    order = largest["phase"].map(PHASES.index).sort_values().index
    return largest.loc[order, ["phase", "operator", "layer", "delta_s"]]


def missing_levels(base: Group, new: Group, case: str) -> pd.DataFrame:
    """Return why a difference has no finer levels. Columns: level; side, the group without that level; reason."""
    rows = []
    of_side = compositions([base, new], {case}).get(case, {})
    for side in (base.label, new.label):
        for level, table in (("operator", "operators"), ("kernel", "kernels")):
            reasons = of_side[side].why_missing(table) if side in of_side else {"no iteration was timed"}
            if reasons is not None:
                rows.append([level, side, "; ".join(sorted(reasons))])
    return pd.DataFrame(rows, columns=["level", "side", "reason"], dtype="str")


def phase_steps(differences: pd.DataFrame) -> pd.DataFrame:
    """Return the steps of a case's `differences` by phase, in order.

    Columns: name; delta_s; start_s and end_s, the times before and after the step. The first starts at the baseline's
    median iteration, the last ends at the other group's.
    """
    return _steps(differences[differences["level"] == "phase"], differences)


def operator_steps(differences: pd.DataFrame) -> pd.DataFrame:
    """Return steps by operator, largest differences first, then all others as one; columns as in `phase_steps`.

    A phase without known operators is one step. There are no rows if no phase has known operators.
    """
    operators = differences[differences["level"] == "operator"]
    if operators.empty:
        return _steps(operators, differences)
    phases = differences[(differences["level"] == "phase") & ~differences["phase"].isin(operators["phase"])]
    rows = pd.concat([operators.assign(name=operators["phase"] + ": " + operators["name"]), phases])
    rows = rows.sort_values("delta_s", key=lambda deltas: -deltas.abs(), kind="stable")
    rest = rows.iloc[NUM_STEPS:]
    if len(rest) > 1:
        others = pd.DataFrame({"name": [f"{len(rest)} others"], "delta_s": [rest["delta_s"].sum()]})
        rows = pd.concat([rows.iloc[:NUM_STEPS], others])
    return _steps(rows, differences)


def _steps(rows: pd.DataFrame, differences: pd.DataFrame) -> pd.DataFrame:
    start_s = differences.loc[differences["level"] == "phase", "base_s"].sum()
    end_s = start_s + rows["delta_s"].cumsum()
    steps = rows[["name", "delta_s"]].assign(start_s=end_s - rows["delta_s"], end_s=end_s)
    return steps.reset_index(drop=True)
