"""Conversion of a trace into a case of a record: its manifest entry and its tables."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from charact.core.errors import UserError
from charact.core.timeline import sums
from charact.record.schema import Rows
from charact.traces.collectives import collective_rows
from charact.traces.counters import NO_KERNELS, SOURCE, counter_rows, outcome
from charact.traces.events import OPTIMIZER, TraceEvents, readable
from charact.traces.files import Trace
from charact.traces.phases import AttributedTrace, Iteration, attribute
from charact.traces.tables import iteration_rows, kernel_rows, layer_rows, memory_rows, operator_rows
from charact.traces.threads import Outline

_NO_STEPS = ("the trace marks no iterations, so that all of it is one: profile with a schedule and call the profiler’s "
             "step() after each")
_NO_HOST = "the trace has no operators: profile with ProfilerActivity.CPU, too"
_NO_OPERATORS_INSIDE = "all operators of the trace lie outside of its iterations: call the profiler’s step() after each"
_NO_KERNELS_INSIDE = "all kernels of the trace were launched outside of its iterations: profile whole iterations"
_NO_DEVICE_TIMES = ("the device ran all of its work before or after the iterations, so that their times are those of "
                    "the host: profile whole iterations")
_NO_PHASES = ("the trace has no information on phases: annotate them in the program, as with "
              "torch.profiler.record_function('charact.phase:forward')")


def trace_case(trace: Trace, name: str, *, by_rank: bool = False) -> tuple[dict[str, Any], dict[str, Rows]]:
    """Return a trace's case and its tables by name.

    Args:
        trace: the trace; it is completed here.
        name: name of the case's workload; the case is named after it and its mode.
        by_rank: whether the trace's rank is part of the case's name.
    """
    kept = trace.kept
    if not kept.operators and not kept.device:
        raise UserError(f"{trace.path} has neither operators nor kernels: record them with torch.profiler")
    placed = attribute(kept)
    iterations, places = placed.iterations, placed.places
    if not any(iteration.end_ns > iteration.start_ns for iteration in iterations):
        raise UserError(f"{trace.path} has no events with a duration: record more with torch.profiler")
    tables = {
        "iterations": iteration_rows(iterations, kept.device),
        "operators": operator_rows(kept, places, len(iterations)),
        "kernels": kernel_rows([placed]),
        "layers": layer_rows(kept), "counters": counter_rows([kept], trace.rank),
        "memory": memory_rows(kept, places, iterations[-1]), "collectives": collective_rows(placed),
    }  # fmt: skip
    entry = _entry(trace, name, placed.outlined)
    if by_rank:
        entry["case"] += f"-rank{trace.rank}"
    entry["passes"] = {"timing": _timing(trace, placed, tables["iterations"]),
                       **_passes(kept, iterations, tables)}
    for one, number in kept.dropped.items():
        facts = entry["passes"].get(one.of_pass, entry["passes"]["timing"])
        facts.setdefault("dropped", []).append({"what": one.what, "reason": one.reason, "num_dropped": number})
    return entry, tables


def _entry(trace: Trace, name: str, outlined: Outline) -> dict[str, Any]:
    kept = trace.kept
    trains = bool(outlined.nodes or kept.backwards or any(mark.name.startswith(OPTIMIZER) for mark in kept.marks))
    mode = "train" if trains else "infer"
    device_name = _device_name(trace)
    return {
        "case": f"{name}-{mode}", "workload": name, "variant": "", "input_kind": None, "input_size": None,
        "batch_size": None, "mode": mode, "precision": "as written", "device": "cuda" if kept.device else "cpu",
        "device_name": device_name, "data": "as written", "num_parameters": None, "source": readable(trace.path),
        "status": "ok", "reason": None, "requested_bytes": None, "rank": trace.rank, "world_size": trace.world_size,
    }  # fmt: skip


def _device_name(trace: Trace) -> str | None:
    """Return the name of the device with most events."""
    devices = Counter(event.device for event in trace.kept.device)
    used = max(devices, key=lambda device: devices[device], default=None)
    return next((one["name"] for one in trace.devices if str(one["index"]) == used), None)


def _timing(trace: Trace, placed: AttributedTrace, rows: Rows) -> dict[str, Any]:
    """Return the facts of the timing pass."""
    iterations = placed.iterations
    clock = "host_s" if rows[0]["device_s"] is None else "device_s"
    walls_s: dict[int, float] = defaultdict(float)
    for row in rows:
        walls_s[row["iteration"]] += row[clock]
    other_s = sum(row[clock] for row in rows if row["phase"] == "other")
    spans = [span for iteration in iterations for span in iteration.spans]
    by_rule_ns = sum(span.end_ns - span.start_ns for span in spans if span.inferred)
    attributed_ns = sum(span.end_ns - span.start_ns for span in spans)
    attributed_frac = 1 - other_s / sum(walls_s.values()) if sum(walls_s.values()) else 0.0
    evidence: dict[str, list[str]] = defaultdict(list)
    for span in spans:
        if span.evidence not in evidence[span.phase]:
            evidence[span.phase].append(span.evidence)
    blind = [_NO_HOST] if not trace.kept.operators else [] if spans else [_NO_PHASES]
    blind += [] if placed.marked else [_NO_STEPS]
    blind += [_NO_DEVICE_TIMES] if trace.kept.device and clock == "host_s" else []
    return {
        "status": "ok", "reason": None, "num_warmup_iterations": 0, "warmup_ended_by": "number",
        "num_iterations": len(iterations), "ended_by": "trace", "precision_target_frac": None, "interval_frac": None,
        "median_s": median(walls_s.values()), "attributed_frac": attributed_frac,
        "inferred_frac": attributed_frac * (by_rule_ns / attributed_ns if attributed_ns else 0.0), "compile_s": None,
        "blind_spots": blind, "own_marks": placed.own_marks, "evidence": dict(evidence),
    }  # fmt: skip


def _passes(kept: TraceEvents, iterations: Sequence[Iteration], tables: dict[str, Rows]) -> dict[str, dict[str, Any]]:
    """Return the facts of the other passes of a trace."""
    phase_ns = sums((span.start_ns, span.end_ns, span.phase) for iteration in iterations for span in iteration.spans)
    reason = _NO_OPERATORS_INSIDE if kept.operators else _NO_HOST
    operators = {**_outcome(bool(tables["operators"]), reason), "num_iterations": len(iterations),
                 "phase_s": {phase: spent / 1e9 / len(iterations) for phase, spent in phase_ns.items()}}
    sources = {SOURCE: outcome(tables["counters"])}
    kernels = _outcome(bool(tables["kernels"]), _NO_KERNELS_INSIDE if kept.device else NO_KERNELS, status="skipped")
    passes = {"operators": operators, "kernels": kernels,
              "counters": {**_outcome(bool(kept.device), NO_KERNELS, status="skipped"),
                           "num_iterations": len(iterations), "sources": sources}}
    if tables["collectives"]:
        passes["collectives"] = _outcome(True, "")
    if tables["memory"]:
        peak = next(row["bytes"] for row in tables["memory"] if row["kind"] == "peak")
        passes["memory"] = {**_outcome(True, ""), "peak_bytes": peak, "reserved_peak_bytes": None,
                            "process_peak_bytes": None}
    return passes


def _outcome(found: bool, reason: str, status: str = "failed") -> dict[str, Any]:
    return {"status": "ok", "reason": None} if found else {"status": status, "reason": reason}
