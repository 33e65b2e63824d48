"""Kernels of a trace: what ran on the device, launched by which operator in which phase.

Kineto writes a kernel's launch geometry only into the exported trace, where `External id` ties it to the operator.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from charact.measure.mark_names import PHASE_PREFIX, phase_at, with_gaps

_DEVICE_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}


def device_ns_by_operator(trace: dict[str, Any]) -> dict[int, int]:
    """Device time in nanoseconds by external id: the correlation id of the operator that launched it."""
    total: dict[int, int] = defaultdict(int)
    for event in _device_events(trace):
        external_id = event["args"].get("External id")
        if external_id is not None:
            total[int(external_id)] += round(event["dur"] * 1000)
    return dict(total)


def kernel_rows(traces: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the table `kernels`, per iteration.

    *Error*: occupancy is Kineto's estimate from the launch geometry: blind to tails and to threads that end early.

    Args:
        traces: traces of `torch.profiler`, parsed from JSON, one iteration each.
    """
    totals: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0, 0.0])
    for trace in traces:
        for event, key in _kernels(trace):
            totals[key][0] += 1
            totals[key][1] += event["dur"] / 1e6
    return [
        {"phase": phase, "operator": operator, "kernel": kernel, "num_calls": num_calls / len(traces),
         "device_s": seconds / len(traces), "grid": grid, "block": block, "registers": registers,
         "shared_memory_bytes": shared, "occupancy_frac": occupancy}
        for (phase, operator, kernel, grid, block, registers, shared, occupancy), (num_calls, seconds)
        in totals.items()
    ]


def _kernels(trace: dict[str, Any]) -> Iterator[tuple[dict[str, Any], tuple[Any, ...]]]:
    """Each device event, with what tells it from others: phase, operator, name and launch geometry."""
    operators = {int(event["args"]["External id"]): event for event in trace["traceEvents"]
                 if event.get("cat") == "cpu_op" and "External id" in event.get("args", {})}
    phases = _phases(trace)
    for event in _device_events(trace):
        args = event["args"]
        launcher = operators.get(int(args.get("External id", -1)))
        launched_by = (phase_at(phases, launcher["ts"]), launcher["name"]) if launcher else (None, None)
        occupancy = args.get("est. achieved occupancy %")
        yield event, (
            *launched_by, event["name"], _json(args.get("grid")), _json(args.get("block")),
            args.get("registers per thread"), args.get("shared memory"), None if occupancy is None else occupancy / 100,
        )


def _phases(trace: dict[str, Any]) -> list[tuple[float, float, str]]:
    """Start, end and name of the phases in the trace, by charact's marks, by time."""
    return with_gaps([
        (event["ts"], event["ts"] + event["dur"], event["name"].removeprefix(PHASE_PREFIX))
        for event in trace["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"].startswith(PHASE_PREFIX)
    ])


def _device_events(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("cat") in _DEVICE_CATEGORIES]


def _json(dimensions: Any) -> str | None:
    """Launch dimensions as JSON; null where the event has none."""
    return None if dimensions is None else json.dumps(dimensions, separators=(",", ":"))
