"""What the median iteration of a case is made of, over repeated runs: phases, and operators and kernels in these."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from charact.analysis.breakdown import OUTSIDE_OPERATORS, operator_times, phase_breakdown
from charact.analysis.cases import iteration_times
from charact.analysis.comparing.matching import matched_cases
from charact.analysis.comparing.sides import Side
from charact.analysis.comparing.statistics import pooled, timed
from charact.analysis.time_limits import exposed_communication_frac
from charact.store import Run

Repeats = list[tuple[Run, str]]
"""Runs of one case, each with the name that the case has there."""

PART = ["phase", "operator", "layer", "kernel"]
"""What names a part of a phase."""


def case_repeats(sides: Sequence[Side], case: str) -> list[Repeats]:
    """For each side, its runs that have times of a matched case, each with the case's name there."""
    matched = matched_cases(sides).query("case == @case")
    found = []
    for side in sides:
        rows = matched[matched["side"] == side.label]
        repeats = [(side.runs[run], str(name)) for run, name in zip(rows["run"], rows["run_case"], strict=True)]
        found.append([(run, name) for run, name in repeats if name in set(run.iterations["case"])])
    return found


def median_s(repeats: Repeats) -> float:
    """Median iteration of a case that has been timed, over its repeats as in `ratios` (s)."""
    walls = [_of_case(iteration_times(run), case)["wall_s"].tolist() for run, case in repeats]
    return pooled([timed(values) for values in walls]).value


def phase_parts(repeats: Repeats, median_s: float) -> "pd.Series[float]":
    """Time of each phase of the median iteration (s): its share of the iterations, averaged over the repeats."""
    shares = pd.concat([_of_case(phase_breakdown(run), case) for run, case in repeats])
    return shares.groupby("phase")["share_frac"].sum() / len(repeats) * median_s


def operator_parts(repeats: Repeats, phases: "pd.Series[float]") -> pd.DataFrame:
    """Operators, these by layer, and kernels of the phases that the profiler saw, scaled to the time of the phases.

    Columns: phase; operator; layer and kernel, null in the operator's own row; time_s. With `OUTSIDE_OPERATORS`, the
    time in none of them, the operators of a phase sum to it. Kernels are parts of their operators, and so are rows by
    layer, of which the one with an empty name is for calls in none.

    *Error*: what part of a phase an operator takes is measured under the profiler, and held to be the same without it.
    What exchanges data counts as far as no computation hides it.
    """
    shares = pd.concat([_shares(run, case).assign(repeat=number) for number, (run, case) in enumerate(repeats)])
    shares = shares[shares["phase"].isin(phases.index)]
    num_repeats = shares.groupby("phase")["repeat"].nunique()
    parts = shares.groupby(PART, dropna=False, as_index=False)[["share_frac"]].sum()
    scale = parts["phase"].map(phases / num_repeats).astype("float64")
    return parts.assign(time_s=parts.pop("share_frac") * scale)


def _of_case(frame: pd.DataFrame, case: str) -> pd.DataFrame:
    return frame[frame["case"] == case]


def _shares(run: Run, case: str) -> pd.DataFrame:
    """Shares of operators, operators by layer, and kernels in the phases of one run. Columns: `PART`, share_frac."""
    operators = _of_case(operator_times(run), case)
    exchanges = operators["operator_type"] == "communication"
    spans = _spans(run, case, operators, exchanges)
    operators["share_frac"] = _share(operators, operators["time_s"], exchanges, spans)
    kernels = _of_case(run.kernels, case)
    of_exchanges = kernels["operator"].isin(operators.loc[exchanges, "operator"])
    kernels = kernels.assign(share_frac=_share(kernels, kernels["device_s"], of_exchanges, spans))
    shares = operators.groupby("phase")["share_frac"].sum(min_count=1)
    outside = pd.DataFrame({"operator": OUTSIDE_OPERATORS, "share_frac": 1 - shares}).reset_index()
    columns = [*PART, "share_frac"]
    layers = operators.fillna({"layer": ""})
    parts = [frame.reindex(columns=columns) for frame in (operators.drop(columns="layer"), layers, outside, kernels)]
    return pd.concat(parts).astype({"layer": "str", "kernel": "str"}).dropna(subset=["share_frac"])


def _spans(run: Run, case: str, operators: pd.DataFrame, exchanges: "pd.Series[bool]") -> pd.DataFrame:
    """What operators were measured in, by phase, as `time_limits` takes it.

    Columns: span_s, under the profiler on a CPU, of the timing pass on a device; exposed_frac, the part of what
    exchanges data that no computation hides.
    """
    on_device = operators["device_s"].notna().any()
    profiled = run.passes(case).get("operators", {}).get("phase_s", {})
    timed = _of_case(phase_breakdown(run), case).set_index("phase")["time_s"].to_dict()
    groups = operators.assign(exchanges=exchanges).pivot_table(
        index="phase", columns="exchanges", values="time_s", aggfunc="sum", fill_value=0.0)
    work_s, exchange_s = (groups.reindex(columns=[False, True], fill_value=0.0)[each] for each in (False, True))
    measured_s = pd.Series({phase: (timed if on_device else profiled).get(phase) for phase in groups.index})
    span_s = pd.Series(np.maximum(measured_s.astype("float64"), work_s))
    exposed_s = np.minimum(exchange_s * exposed_communication_frac(run).dropna().get(case, 1.0), span_s - work_s)
    return pd.DataFrame({"span_s": span_s.where(span_s > 0), "exposed_frac": exposed_s / exchange_s})


def _share(rows: pd.DataFrame, times_s: "pd.Series[float]", exchanges: "pd.Series[bool]",
           spans: pd.DataFrame) -> "pd.Series[float]":  # fmt: skip
    """Share of each row in its phase; null where nothing tells how long the phase was."""
    exposed_frac, span_s = (rows["phase"].map(spans[name]).astype("float64") for name in ("exposed_frac", "span_s"))
    return times_s.mask(exchanges, times_s * exposed_frac) / span_s
