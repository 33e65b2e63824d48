"""Limits of each part of an iteration's time: disjoint parts that sum to the median iteration."""

import numpy as np
import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.common.row_order import in_order
from charact.analysis.efficiency.ceilings import case_ceilings
from charact.analysis.efficiency.roofline import lower_bounds
from charact.analysis.profile.breakdown import operator_times, phase_breakdown
from charact.core.operator_types import OUTSIDE_OPERATORS
from charact.record.reader import Run

LIMITS = ("data", "communication", "host", "compute", "bandwidth", "other")
"""Limits of time, in display order; `other` is unknown."""
CALLING = "calling operators"
"""Operator type of the time that operators take on a CPU before they compute."""
WAITING = "waiting for launches"
"""Operator type of the time in which a device had no kernel to run."""

_COMPUTING = ("forward", "loss", "backward", "update")
_BOOKKEEPING = ("view", "autograd", "host sync")
"""Operator types that move no data: on a CPU all their time belongs to the host."""
_PLACE = ["case", "phase"]
_PARTS = ["case", "phase", "operator_type", "layer", "limit", "time_s", "bound_s", "flop", "bytes"]


def time_limits(run: Run) -> pd.DataFrame:
    """Return the time of each case's median iteration by its limit.

    Columns: case; limit, one of `LIMITS`; time_s; share_frac. A case's times sum to its median iteration. 'data' and
    'communication' are the phases; 'host' is Python and the calling of operators on a CPU, on CUDA the time in which
    the device waited for launches; 'compute' and 'bandwidth' are operators by their tighter ceiling; 'other' is time in
    no phase, or in operators without known work or ceiling.

    *Error*: operator times come from the operator pass, scaled to the phase's time; operators of one layer and type
    have one common limit.
    """
    limits = limited_parts(run).groupby(["case", "limit"], as_index=False)[["time_s"]].sum()
    limits["share_frac"] = limits["time_s"] / limits.groupby("case")["time_s"].transform("sum")
    order = limits["limit"].map(LIMITS.index).sort_values(kind="stable").index
    return in_order(limits.loc[order], run, "case")[["case", "limit", "time_s", "share_frac"]]


@memoize
def limited_parts(run: Run) -> pd.DataFrame:
    """Return the parts that `time_limits` sums.

    Columns: case; phase; operator_type and layer, null for whole phases; limit; time_s; bound_s, the least time of the
    part at the ceilings (null if unknown); flop and bytes.
    """
    phases = phase_breakdown(run)[[*_PLACE, "time_s"]]
    operators = operator_times(run)
    operators["on_device"] = operators.groupby("case")["device_s"].transform("count") > 0
    operators["exchanges"] = operators["operator_type"] == "communication"
    operators = operators[operators["phase"].isin(_COMPUTING)]
    operators = operators.merge(case_ceilings(run).drop(columns="reason"), on="case")
    covered = _covered(run, phases, operators)
    inside = pd.MultiIndex.from_frame(phases[_PLACE]).isin(pd.MultiIndex.from_frame(covered[_PLACE]))
    whole = phases[~inside]
    whole = whole.assign(limit=whole["phase"].where(whole["phase"].isin(["data", "communication"]), "other"))
    scaled = operators.merge(covered[[*_PLACE, "scale"]], on=_PLACE)
    exchange_s = covered["exchange_s"] * covered["scale"]
    exchange = covered[_PLACE].assign(operator_type="communication", limit="communication", time_s=exchange_s)
    idle_s = (covered["span_s"] - covered["work_s"] - covered["exchange_s"]) * covered["scale"]
    name = covered["on_device"].map({True: WAITING, False: OUTSIDE_OPERATORS})
    idle = covered[_PLACE].assign(operator_type=name, limit="host", time_s=idle_s)
    parts = pd.concat([whole, idle, exchange, *_in_operators(scaled)])
    parts = parts[parts["time_s"] > 0].reset_index(drop=True)
    return in_order(parts.reindex(columns=_PARTS), run, "case", "phase")


def _covered(run: Run, phases: pd.DataFrame, operators: pd.DataFrame) -> pd.DataFrame:
    """Return how operators fill each phase that has any.

    Columns: case; phase; span_s, the time that its operators were measured in: on a CPU under the profiler, on a device
    of the timing pass, which kernels cannot exceed; work_s and exchange_s of it, in compute operators and in exposed
    communication; scale, from there to the timing pass; on_device.
    """
    spans = pd.DataFrame(
        [[entry.case, phase, span_s] for entry in run.entries
         for phase, span_s in entry.passes.operators.phase_s.items()],
        columns=[*_PLACE, "profiled_s"],
    ).astype({"case": "str", "phase": "str", "profiled_s": "float64"})  # fmt: skip
    rows = operators.assign(
        work_s=operators["time_s"].mask(operators["exchanges"], 0.0),
        exchange_s=operators["time_s"].where(operators["exchanges"], 0.0),
    )
    covered = rows.groupby(_PLACE, as_index=False).agg(
        work_s=("work_s", "sum"), exchange_s=("exchange_s", "sum"), on_device=("on_device", "first"))
    covered = covered.merge(phases, on=_PLACE).merge(spans, on=_PLACE, how="left")
    measured_in_s = covered["profiled_s"].mask(covered["on_device"], covered["time_s"]).fillna(0.0)
    covered["span_s"] = np.maximum(measured_in_s, covered["work_s"])
    exposed_frac = covered["case"].map(exposed_communication_frac(run)).astype("float64").fillna(1.0)
    covered["exchange_s"] = np.minimum(covered["exchange_s"] * exposed_frac, covered["span_s"] - covered["work_s"])
    # A host that waits for an exchange does so in the phase communication, which the other phases do not contain.
    waits = set(phases.loc[phases["phase"] == "communication", "case"])
    is_apart = covered["case"].isin(waits) & ~covered["on_device"]
    covered["span_s"] -= covered["exchange_s"].where(is_apart, 0.0)
    covered["exchange_s"] = covered["exchange_s"].mask(is_apart, 0.0)
    covered["scale"] = covered["time_s"] / covered["span_s"].where(covered["span_s"] > 0)
    return covered.dropna(subset=["scale"])[[*_PLACE, "span_s", "work_s", "exchange_s", "scale", "on_device"]]


@memoize
def exposed_communication_frac(run: Run) -> "pd.Series[float]":
    """Return the exposed share of each case's communication (not overlapped by compute), if a trace has it."""
    rows = run.counters[run.counters["source"] == "kineto"]
    spent = rows.pivot_table(index="case", columns="counter", values="value", aggfunc="sum")
    spent = spent.reindex(columns=["exposed_communication_s", "communication_s"])
    return spent["exposed_communication_s"] / spent["communication_s"].where(spent["communication_s"] > 0)


def _in_operators(operators: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the time of calling operators, and of their work by layer and type, scaled to the timing pass."""
    rows = operators[~operators["exchanges"]].copy()
    rows["time_s"] *= rows["scale"]
    calling_s = (rows["num_calls"] * rows["launch_s"]).fillna(0.0).clip(upper=rows["time_s"])
    calling_s = calling_s.mask(rows["operator_type"].isin(_BOOKKEEPING), rows["time_s"]).mask(rows["on_device"], 0.0)
    calling = rows.assign(time_s=calling_s).groupby(_PLACE, as_index=False)[["time_s"]].sum()
    rows["time_s"] -= calling_s
    groups = rows.groupby([*_PLACE, "operator_type", "layer"], dropna=False, as_index=False, sort=False)
    sums = groups[["time_s", "flop", "bytes"]].sum(min_count=1)
    rates = groups[["peak_flop_per_s", "peak_bytes_per_s"]].first()[["peak_flop_per_s", "peak_bytes_per_s"]]
    work = pd.concat([sums, rates], axis="columns")
    bounds = lower_bounds(work)
    work = work.assign(limit=bounds["limit"].fillna("other"), bound_s=bounds["bound_s"])
    return calling.assign(operator_type=CALLING, limit="host"), work
