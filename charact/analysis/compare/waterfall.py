"""Steps of a waterfall chart from one time to another, the longest first."""

import pandas as pd

NUM_STEPS = 8
"""Number of operators with a step of their own."""


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
    steps = pd.DataFrame({"name": rows["name"], "delta_s": rows["delta_s"], "start_s": end_s - rows["delta_s"],
                          "end_s": end_s})  # fmt: skip
    return steps.reset_index(drop=True)
