"""Composition of the median iteration of a case over repeated runs: phases, operators and kernels."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from charact.analysis.common.pass_status import pass_reason
from charact.analysis.common.significance import Pool, Sample
from charact.analysis.compare.matching import Group
from charact.analysis.compare.pairs import Fact, gathered
from charact.analysis.efficiency.counters import counter_values
from charact.analysis.efficiency.time_bounds import exposed_communication_frac
from charact.analysis.profile.breakdown import operator_times, phase_breakdown
from charact.analysis.profile.case_summary import iteration_times
from charact.core.operator_types import OUTSIDE_OPERATORS
from charact.record.reader import Run

Seen = dict[tuple[str, str], dict[str, set[str]]]
"""Kernels, input shapes or numbers of calls of the operators of a phase, by layer."""

_CLOCKS = r"_hz$|^throttled_frac$"

PART = ["phase", "operator", "layer", "kernel"]
"""Columns that identify a part of a phase."""


@dataclass(frozen=True)
class Parts:
    """The parts of a case's iteration in one run."""

    median: Sample
    phases: pd.DataFrame
    """Columns: phase, share_frac."""
    operators: pd.DataFrame
    """Columns: `PART`, share_frac."""
    seen: pd.DataFrame
    """Columns: phase, operator, layer, input_shapes, num_calls."""
    kernels: pd.DataFrame
    """Columns: phase, operator, kernel."""
    clocks: pd.DataFrame
    """Columns: counter, source, value."""
    missing: dict[str, str]
    """Why tables have no rows of the case, by table name."""


class Composition:
    """Composition of the median iteration of a case, over the runs of a group.

    Shares are summed on arrival: those of hundreds of runs would take 60 MB.
    """

    def __init__(self) -> None:
        self.num_repeats = 0
        self._median = Pool()
        self._phases: defaultdict[str, float] = defaultdict(float)
        self._shares: dict[tuple[Any, ...], float] = defaultdict(float)
        self._num_with_phase: Counter[str] = Counter()
        self._missing: dict[str, list[str]] = {}
        self._clocks: list[tuple[str, str, float]] = []
        self.shapes: Seen = defaultdict(lambda: defaultdict(set))
        self.kernels: Seen = defaultdict(lambda: defaultdict(set))
        self._calls: defaultdict[tuple[str, str], float] = defaultdict(float)

    def add(self, parts: Parts) -> "Composition":
        """Add the parts of another run, and return the sum."""
        self.num_repeats += 1
        self._median.add(parts.median)
        for phase, share_frac in _plain(parts.phases):
            self._phases[phase] += share_frac
        for *place, share_frac in _plain(parts.operators[[*PART, "share_frac"]]):
            self._shares[tuple(place)] += share_frac
        self._num_with_phase.update(set(parts.operators["phase"]))
        for phase, operator, layer, shapes, num_calls in _plain(parts.seen):
            self.shapes[phase, operator][layer or ""].add(shapes or "")
            self._calls[phase, operator] += num_calls or 0.0
        for phase, operator, kernel in _plain(parts.kernels):
            self.kernels[phase, operator][""].add(kernel)
        self._clocks += parts.clocks.itertuples(index=False, name=None)
        for table, reason in parts.missing.items():
            self._missing.setdefault(table, []).append(reason)
        return self

    @property
    def median_s(self) -> float:
        """Median iteration over the runs, as in `ratios` (s)."""
        return self._median.sample().value

    @property
    def phases(self) -> "pd.Series[float]":
        """Time of each phase of the median iteration (s): its share, averaged over the runs, times the median."""
        shares = pd.Series(self._phases, pd.Index(sorted(self._phases), dtype="str", name="phase"), dtype="float64")
        return shares / self.num_repeats * self.median_s

    @property
    def operators(self) -> pd.DataFrame:
        """Operators in total, operators by layer, and kernels, scaled to the time of their phases.

        Columns: phase; operator; layer and kernel, null in the operator's own row; time_s. The operators of a phase and
        `OUTSIDE_OPERATORS`, the time in no operator, sum to the phase. Kernels and rows by layer are parts of their
        operators; the layer is empty for calls in no layer.

        *Error*: an operator's share of a phase is measured under the profiler and assumed equal without it.
        Communication counts as far as it is exposed (not overlapped by compute).
        """
        phases = self.phases
        parts = pd.DataFrame(list(self._shares), columns=PART, dtype="str")
        parts["share_frac"] = np.array(list(self._shares.values()), dtype=np.float64)
        parts = parts[parts["phase"].isin(phases.index)].sort_values(PART, ignore_index=True)
        scale = parts["phase"].map(phases / pd.Series(self._num_with_phase)).astype("float64")
        return parts.assign(time_s=parts.pop("share_frac") * scale)

    @property
    def calls(self) -> Seen:
        """Mean number of calls in an iteration over the runs, by phase and operator."""
        return {place: {"": {f"{num_calls / self.num_repeats:.4g}"}} for place, num_calls in self._calls.items()}

    @property
    def clocks(self) -> "pd.Series[float]":
        """Clock rates while counters were read, by counter and source: means over devices and runs."""
        rows = pd.DataFrame(self._clocks, columns=["counter", "source", "value"]).astype({"value": "float64"})
        return rows.groupby(["counter", "source"])["value"].mean()

    def why_missing(self, table: str) -> set[str] | None:
        """Return why no run has rows of a table; None if one has."""
        reasons = self._missing.get(table, [])
        return set(reasons) if len(reasons) == self.num_repeats else None


def compositions(sides: Sequence[Group], cases: Collection[str] | None = None) -> dict[str, dict[str, Composition]]:
    """Return the composition of each matched case, or of those named, in each group that timed it."""
    return gathered(sides, [COMPOSITION], cases)[0]


def _parts(run: Run, cases: Collection[str]) -> dict[str, Parts]:
    medians_s = iteration_times(run).groupby("case", sort=False)["wall_s"].median()
    counters = counter_values(run)
    clocks = counters[counters["counter"].str.contains(_CLOCKS).astype(bool)]
    tables = phase_breakdown(run), operator_times(run), run.kernels, clocks
    exposed = exposed_communication_frac(run).dropna()
    parts = {}
    for case in medians_s.index.intersection(list(cases)):
        phases, operators, kernels, of_clocks = (rows[rows["case"] == case] for rows in tables)
        timed_s = dict(zip(phases["phase"], phases["time_s"], strict=True))
        spans = _spans(operators, timed_s, run.entry(case).passes.operators.phase_s, exposed.get(case, 1.0))
        parts[case] = Parts(
            Sample(float(medians_s[case])), phases[["phase", "share_frac"]], _shares(operators, kernels, spans),
            operators[["phase", "operator", "layer", "input_shapes", "num_calls"]],
            kernels.loc[kernels["operator"].notna(), ["phase", "operator", "kernel"]],
            of_clocks[["counter", "source", "value"]],
            {name: pass_reason(run, case, name) or "the record has no data"
             for name, rows in (("operators", operators), ("kernels", kernels)) if rows.empty},
        )  # fmt: skip
    return parts


COMPOSITION: Fact[Parts, Composition] = Fact(_parts, lambda total, parts: (total or Composition()).add(parts))


def _plain(rows: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    # Iterating over Arrow-backed strings of pandas is slow.
    columns = [[None if value != value else value for value in rows[name].to_numpy("object")] for name in rows]
    return zip(*columns, strict=True)


def _shares(operators: pd.DataFrame, kernels: pd.DataFrame, spans: dict[str, tuple[float, float]]) -> pd.DataFrame:
    """Return shares of operators, operators by layer, and kernels in the phases of one run: `PART`, share_frac.

    A share is null if the duration of the phase is unknown.
    """
    def share(rows: pd.DataFrame, times_s: "pd.Series[float]", exchanges: "pd.Series[bool]") -> "pd.Series[float]":
        span_s, exposed_frac = (rows["phase"].map({phase: span[number] for phase, span in spans.items()})
                                .astype("float64") for number in (0, 1))
        return times_s.mask(exchanges, times_s * exposed_frac) / span_s

    exchanges = operators["operator_type"] == "communication"
    of_exchanges = kernels["operator"].isin(operators.loc[exchanges, "operator"])
    operators = operators.assign(share_frac=share(operators, operators["time_s"], exchanges))
    kernels = kernels.assign(share_frac=share(kernels, kernels["device_s"], of_exchanges))
    shares = operators.groupby("phase")["share_frac"].sum(min_count=1)
    outside = pd.DataFrame({"operator": OUTSIDE_OPERATORS, "share_frac": 1 - shares}).reset_index()
    columns = [*PART, "share_frac"]
    layers = operators.fillna({"layer": ""})
    parts = [frame.reindex(columns=columns) for frame in (operators.drop(columns="layer"), layers, outside, kernels)]
    return pd.concat(parts).astype({"layer": "str", "kernel": "str"}).dropna(subset=["share_frac"])


def _spans(operators: pd.DataFrame, timed_s: Mapping[str, float], profiled_s: Mapping[str, float],
           most_exposed_frac: float) -> dict[str, tuple[float, float]]:
    """Return the time that the operators of each phase were measured in, as `time_limits` expects; NaN if unknown.

    Returns the time (s), on a CPU under the profiler, on a device of the timing pass; and the exposed share of
    communication (not overlapped by compute).
    """
    measured_s = timed_s if operators["device_s"].notna().any() else profiled_s
    exchanges = operators["operator_type"] == "communication"
    sums: dict[Any, float] = operators["time_s"].groupby([operators["phase"], exchanges]).sum().to_dict()
    spans = {}
    for phase in dict.fromkeys(phase for phase, _ in sums):
        work_s, exchange_s = (np.float64(sums.get((phase, each), 0.0)) for each in (False, True))
        span_s = np.maximum(np.float64(measured_s.get(phase, math.nan)), work_s)
        exposed_s = np.minimum(exchange_s * most_exposed_frac, span_s - work_s)
        spans[phase] = (float(span_s) if span_s > 0 else math.nan,
                        float(exposed_s / exchange_s) if exchange_s else math.nan)  # fmt: skip
    return spans
