"""The operator pass: a few iterations under `torch.profiler`, for shares by operator, layer and kernel."""

import gzip
import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from charact.measure.event_tree import EventTree, read_event_tree
from charact.measure.kernels import device_ns_by_operator, kernel_rows
from charact.measure.loop import Loop
from charact.measure.marks import layer_marks, phase_mark

NUM_ITERATIONS = 3


@dataclass(frozen=True)
class OperatorPass:
    """What the operator pass found: rows of `operators` and `kernels`, and facts about itself."""

    operator_rows: list[dict[str, Any]]
    kernel_rows: list[dict[str, Any]]
    facts: dict[str, Any]


def operator_pass(loop: Loop, trace_path: Path, num_iterations: int = NUM_ITERATIONS) -> OperatorPass:
    """Run some iterations under the profiler with phase and layer marks, and write their trace.

    *Error*: the profiler slows each operator by some microseconds, so shares are shown, and absolute times are taken
    from the timing pass. Stacks are not recorded: they would break the phases' spans in trace viewers.
    """
    on_cuda = loop.case.device.type == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_cuda
    wall_s = []
    with layer_marks(loop.model):
        loop.iteration(phase_mark)
        with profile(activities=activities, record_shapes=True) as profiler:
            for i in range(num_iterations):
                begun = time.perf_counter()
                with torch.profiler.record_function(f"ProfilerStep#{i}"):
                    loop.iteration(phase_mark)
                if on_cuda:
                    torch.cuda.synchronize(loop.case.device)
                wall_s.append(time.perf_counter() - begun)
    profiler.export_chrome_trace(str(trace_path))
    tree = read_event_tree(profiler)
    trace = json.loads(gzip.decompress(trace_path.read_bytes())) if on_cuda else None
    device_ns = device_ns_by_operator(trace) if trace else None
    return OperatorPass(
        operator_rows=operator_rows(tree, num_iterations, device_ns),
        kernel_rows=kernel_rows(trace, num_iterations) if trace else [],
        facts={"num_iterations": num_iterations, "iteration_s": median(wall_s),
               "phase_s": _phase_s(tree, num_iterations)},
    )


def operator_rows(tree: EventTree, num_iterations: int, device_ns: Mapping[int, int] | None) -> list[dict[str, Any]]:
    """Rows of the table `operators`, per iteration, without FLOP and bytes; operators outside of phases are left out.

    Args:
        tree: the events of all iterations.
        num_iterations: number of iterations that they cover.
        device_ns: device time by the correlation id of the operator that launched it; None on a CPU.
    """
    totals: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0, 0, 0])
    for call in tree.operators:
        if call.phase is None:
            continue
        total = totals[call.phase, call.name, call.operator_type, call.layer, call.input_shapes]
        total[0] += 1
        total[1] += call.self_ns
        total[2] += device_ns.get(call.correlation_id, 0) if device_ns else 0
    return [
        {"phase": phase, "operator": name, "operator_type": kind, "layer": layer, "input_shapes": shapes,
         "num_calls": num_calls / num_iterations, "self_host_s": self_ns / 1e9 / num_iterations,
         "device_s": None if device_ns is None else launched_ns / 1e9 / num_iterations, "flop": None, "bytes": None}
        for (phase, name, kind, layer, shapes), (num_calls, self_ns, launched_ns) in totals.items()
    ]


def place_flop(operators: list[dict[str, Any]], flop: list[dict[str, Any]]) -> None:
    """Put FLOP and bytes of the FLOP pass onto the operator rows that hold the time of the work.

    PyTorch counts on `aten::convolution`, while the time stands on what that calls (`aten::mkldnn_convolution`). So
    the counts of a phase, layer and operator type go to its row with the most time.
    """
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in operators:
        rows[row["phase"], row["layer"], row["operator_type"]].append(row)
    for count in flop:
        candidates = rows.get((count["phase"], count["layer"], count["operator_type"]))
        if candidates:
            target = max(candidates, key=lambda row: (row["device_s"] or 0.0, row["self_host_s"]))
            for quantity in ("flop", "bytes"):
                if count[quantity] is not None:
                    target[quantity] = (target[quantity] or 0.0) + count[quantity]


def _phase_s(tree: EventTree, num_iterations: int) -> dict[str, float]:
    """Host time of each phase per iteration, under the profiler, in seconds."""
    seconds: dict[str, float] = defaultdict(float)
    for start_ns, end_ns, phase in tree.phases:
        seconds[phase] += (end_ns - start_ns) / 1e9 / num_iterations
    return dict(seconds)
