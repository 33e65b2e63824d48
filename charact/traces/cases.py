"""Conversion of a trace into a case of a record: its manifest entry and its tables."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

import msgspec

from charact.core.errors import UserError
from charact.core.operator_types import WITHOUT_OPERATOR
from charact.core.timeline import Iteration, sums
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import (
    CollectivesPass,
    CountersPass,
    DroppedItems,
    MemoryPass,
    OperatorsPass,
    Pass,
    SourceOutcome,
    TimingPass,
)
from charact.record.schema import Rows
from charact.traces.collectives import collective_rows
from charact.traces.counters import NO_KERNELS, SOURCE, counter_rows, outcome
from charact.traces.events import OPTIMIZER, Dropped, TraceEvents, readable
from charact.traces.phases import AttributedTrace, attribute
from charact.traces.reader import Trace, stem
from charact.traces.recorded_device import not_recorded, recorded_device
from charact.traces.serving.rows import kernel_kind_rows, step_rows
from charact.traces.serving.step_names import stage_of_file
from charact.traces.serving.steps import find_steps
from charact.traces.tables import iteration_rows, kernel_rows, layer_rows, memory_rows, operator_rows
from charact.traces.without_operator import work_without_operator

_NO_STEPS = ("the trace marks no iterations, so that all of it is one: profile with a schedule and call the profiler’s "
             "step() after each")
_SERVES = "the trace marks no iterations, so that all of it is one; the server’s steps are in the section Serving steps"
_STEPS_OF_OPTIMIZER = ("the trace marks no iterations, so that each is inferred to end with a step of the optimizer: "
                       "profile with a schedule and call the profiler’s step() after each")
_MOST_COVERED_FRAC = 0.99
_PARTIAL = Dropped("timing", "partial iterations", "at an edge of the trace, with hardly any work")
_NO_HOST = "the trace has no operators: profile with ProfilerActivity.CPU, too"
_NO_OPERATORS_INSIDE = "all operators of the trace lie outside of its iterations: call the profiler’s step() after each"
_NO_KERNELS_INSIDE = "all kernels of the trace were launched outside of its iterations: profile whole iterations"
_NO_DEVICE_TIMES = ("the device ran all of its work before or after the iterations, so that their times are those of "
                    "the host: profile whole iterations")
_NO_PHASES = ("the trace has no information on phases: annotate them in the program, as with "
              "torch.profiler.record_function('charact.phase:forward')")


def trace_case(trace: Trace, name: str, *, by_rank: bool = False) -> tuple[CaseEntry, dict[str, Rows]]:
    """Return a trace's case and its tables by name."""
    events = trace.events
    if not events.operators and not events.device:
        raise UserError(f"{trace.path} has neither operators nor kernels: record them with torch.profiler")
    attributed = attribute(events)
    iterations = attributed.iterations
    if not any(iteration.end_ns > iteration.start_ns for iteration in iterations):
        raise UserError(f"{trace.path} has no events with a duration: record more with torch.profiler")
    without = work_without_operator(attributed)
    tables = {
        "iterations": iteration_rows(attributed), "operators": operator_rows(attributed, without),
        "kernels": kernel_rows([attributed]), "layers": layer_rows(events),
        "counters": counter_rows([events], trace.rank, [attributed.marked]), "memory": memory_rows(attributed),
        "collectives": collective_rows(attributed),
    }  # fmt: skip
    serving = find_steps(attributed, stage_of_file(stem(trace.path)))
    if serving is not None:
        tables |= {"serving_steps": step_rows(serving, events), "serving_kernels": kernel_kind_rows(serving, events)}
    trains = bool(attributed.outlined.nodes or events.backwards
                  or any(mark.name.startswith(OPTIMIZER) for mark in events.marks))
    mode = "train" if trains else "infer"
    device, device_name = recorded_device(trace)
    entry = CaseEntry(
        f"{name}-{mode}" + (f"-rank{trace.rank}" if by_rank else ""), "ok", name, mode=mode, precision="as written",
        device=device, device_name=device_name, data="as written", source=readable(trace.path), rank=trace.rank,
        world_size=trace.world_size)
    entry.passes["timing"] = _timing(trace, attributed, tables["iterations"], serves=serving is not None)
    if tables["operators"]:
        launched_ns = sum(row["device_s"] for row in tables["kernels"]) * 1e9 * len(iterations)
        entry.passes.timing.blind_spots += _not_covered(launched_ns, sum(spent_ns for _, spent_ns in without.values()))
    entry.passes.update(_passes(events, iterations, tables))
    all_dropped = events.dropped + _outside(attributed) + _unread(attributed)
    for dropped, number in (all_dropped + serving.dropped if serving else all_dropped).items():
        facts = entry.passes.get(dropped.of_pass, entry.passes.timing)
        facts.dropped = [*facts.dropped, DroppedItems(dropped.what, dropped.reason, number)]
    return entry, tables


def _outside(trace: AttributedTrace) -> Counter[Dropped]:
    operators = sum(trace.phase_at(operator.start_ns) is None for operator in trace.events.operators)
    launches = [event.launched_ns for event, phase in zip(trace.events.device, trace.launch_phases, strict=True)
                if phase is None]
    return +Counter({
        Dropped("operators", "operators", "outside of all iterations"): operators,
        Dropped("kernels", "kernels", "launched before the trace began"): launches.count(None),
        Dropped("kernels", "kernels", "launched outside of all iterations"): len(launches) - launches.count(None)})


def _not_covered(launched_ns: float, without_ns: int) -> list[str]:
    if not launched_ns or without_ns <= (1 - _MOST_COVERED_FRAC) * launched_ns:
        return []
    percent = max(0.0, 100 * (1 - without_ns / launched_ns))
    return [f"operators launched {percent:.1f} % of the kernels’ time: the rest has the type “{WITHOUT_OPERATOR}”"]


def _unread(trace: AttributedTrace) -> Counter[Dropped]:
    return +Counter({
        **{Dropped("timing", f"events of category {category}", "not read"): number
           for category, number in trace.events.unread.items()},
        _PARTIAL: trace.found.num_partial})


def _timing(trace: Trace, attributed: AttributedTrace, rows: Rows, *, serves: bool) -> TimingPass:
    iterations = attributed.iterations
    clock = "host_s" if rows[0]["device_s"] is None else "device_s"
    walls_s: dict[int, float] = defaultdict(float)
    for row in rows:
        walls_s[row["iteration"]] += row[clock]
    other_s = sum(row[clock] for row in rows if row["phase"] == "other")
    intervals = [each for iteration in iterations for each in iteration.intervals]
    by_rule_ns = sum(each.host_ns for each in intervals if each.inferred)
    attributed_ns = sum(each.host_ns for each in intervals)
    attributed_frac = 1 - other_s / sum(walls_s.values()) if sum(walls_s.values()) else 0.0
    evidence: dict[str, list[str]] = defaultdict(list)
    for each in intervals:
        if each.evidence not in evidence[each.phase]:
            evidence[each.phase].append(each.evidence)
    blind = [_NO_HOST] if not trace.events.operators else [] if intervals else [_NO_PHASES]
    marks = attributed.found.marks
    if marks != "steps":
        blind.append(_STEPS_OF_OPTIMIZER if marks == "optimizer" else _SERVES if serves else _NO_STEPS)
    blind += not_recorded(trace)
    blind += [_NO_DEVICE_TIMES] if trace.events.device and clock == "host_s" else []
    return TimingPass(
        "ok", num_warmup_iterations=0, warmup_ended_by="number", num_iterations=len(iterations), ended_by="trace",
        median_s=median(walls_s.values()), attributed_frac=attributed_frac,
        inferred_frac=attributed_frac * (by_rule_ns / attributed_ns if attributed_ns else 0.0), blind_spots=blind,
        own_marks=bool(trace.events.phase_marks), evidence=dict(evidence))


def _passes(events: TraceEvents, iterations: Sequence[Iteration], tables: dict[str, Rows]) -> dict[str, Pass]:
    num_iterations = len(iterations)
    phase_ns = sums((each.start_ns, each.end_ns, each.phase)
                    for iteration in iterations for each in iteration.intervals)
    operators = OperatorsPass("ok", num_iterations=num_iterations,
                              phase_s={phase: spent / 1e9 / num_iterations for phase, spent in phase_ns.items()})
    if not tables["operators"]:
        operators.update(status="failed", reason=_NO_OPERATORS_INSIDE if events.operators else _NO_HOST)
    counters = CountersPass("ok", num_iterations=num_iterations,
                            sources={SOURCE: msgspec.convert(outcome(tables["counters"]), SourceOutcome)})
    if not events.device:
        counters.update(status="skipped", reason=NO_KERNELS)
    passes: dict[str, Pass] = {
        "operators": operators, "counters": counters,
        "kernels": Pass("ok") if tables["kernels"] else Pass(
            "skipped", _NO_KERNELS_INSIDE if events.device else NO_KERNELS)}
    if tables["collectives"]:
        passes["collectives"] = CollectivesPass("ok")
    if tables["memory"]:
        peak = next(row["bytes"] for row in tables["memory"] if row["kind"] == "peak")
        passes["memory"] = MemoryPass("ok", peak_bytes=peak)
    return passes
