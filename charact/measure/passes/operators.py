"""The operator pass: a few iterations under `torch.profiler`, for shares by operator, layer and kernel."""

import contextlib
import gzip
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

from charact.measure.passes.event_tree import EventTree, read_event_tree
from charact.measure.passes.marks import layer_marks, phase_mark
from charact.record.redaction import redact_chunks
from charact.traces.attribution import Placed, place
from charact.traces.counters import counter_rows
from charact.traces.device import device_ns_by_operator
from charact.traces.files import read_trace
from charact.traces.tables import kernel_rows

if TYPE_CHECKING:
    from charact.execution.loop import Loop

NUM_ITERATIONS = 3
"""Iterations of a user's own program that are profiled, and the fewest of a case."""
_MOST_ITERATIONS = 12
_ENOUGH_S = 0.5
"""Short iterations vary most, and are profiled more often: until so much time went by."""
_CHUNK_BYTES = 1 << 20
_ACTIVITIES = {False: [ProfilerActivity.CPU], True: [ProfilerActivity.CPU, ProfilerActivity.CUDA]}


@dataclass(frozen=True)
class OperatorPass:
    """What the operator pass found: rows of `operators`, `kernels` and `counters`, and facts about itself.

    Launch geometry stands only in the exported traces: kernels and counters are read from these.
    """

    operator_rows: list[dict[str, Any]]
    kernel_rows: list[dict[str, Any]]
    counter_rows: list[dict[str, Any]]
    facts: dict[str, Any]


@dataclass(frozen=True)
class ProfiledIteration:
    """One iteration under the profiler: its events, and on CUDA the device time by operator (its correlation id)."""

    tree: EventTree
    device_ns: Mapping[int, int] | None


class OperatorProbe:
    """Profiles iterations, each between `begin` and `end`; the last one's trace is written.

    Each has a profiler of its own: what a profiler holds on to lies between the blocks of the C library's heap, and a
    second iteration under the same one then touches fresh memory (ResNet-50 at 224 px, batch 8: 1.8 times as slow,
    against 1.03 times).

    *Error*: the profiler slows each operator by some microseconds, so shares are shown, and absolute times are taken
    from the timing pass. Stacks are not recorded: they would break the phases' spans in trace viewers.

    Args:
        trace_path: where the trace goes.
        device: what kernels run on; the host for none.
    """

    def __init__(self, trace_path: Path, device: torch.device) -> None:
        self._trace_path, self._device = trace_path, device
        self._on_cuda = device.type == "cuda"
        self._wall_s: list[float] = []
        self._profiled: list[ProfiledIteration] = []
        self._traces: list[Placed] = []

    def begin(self) -> None:
        """An iteration starts now."""
        if self._on_cuda:  # or earlier kernels would run into its trace
            torch.cuda.synchronize(self._device)
        self._profiler = profile(activities=_ACTIVITIES[self._on_cuda], record_shapes=True)
        self._profiler.start()
        self._begun = time.perf_counter()
        self._step = torch.profiler.record_function(f"ProfilerStep#{len(self._profiled)}")
        self._step.__enter__()  # type: ignore[no-untyped-call]

    def end(self, *, last: bool) -> None:
        """The iteration has ended; what was recorded is read."""
        self._stop()
        if self._on_cuda or last:
            export_trace(self._profiler, self._trace_path)
        if self._on_cuda:
            self._traces.append(place(read_trace(self._trace_path).kept))
        device_ns = device_ns_by_operator(self._traces[-1].kept) if self._on_cuda else None
        self._profiled.append(ProfiledIteration(read_event_tree(self._profiler), device_ns))
        self._forget()

    def drop(self) -> None:
        """End the iteration as if it had not been."""
        self._stop()
        self._wall_s.pop()
        self._forget()

    def found(self) -> OperatorPass:
        """What the iterations were, of those that count."""
        counted = undisturbed(self._profiled, self._wall_s)
        profiled = [self._profiled[number] for number in counted]
        traces = [self._traces[number] for number in counted] if self._on_cuda else []
        return OperatorPass(
            operator_rows=operator_rows(profiled), kernel_rows=kernel_rows(traces),
            counter_rows=counter_rows([trace.kept for trace in traces], rank=0),
            facts={"num_iterations": len(self._profiled), "num_counted_iterations": len(profiled),
                   "iteration_s": median(self._wall_s), "phase_s": _phase_s(profiled)},
        )

    def _stop(self) -> None:
        self._step.__exit__(None, None, None)
        if self._on_cuda:
            torch.cuda.synchronize(self._device)
        self._wall_s.append(time.perf_counter() - self._begun)
        self._profiler.stop()

    def _forget(self) -> None:
        vars(self._profiler).clear()  # it refers to itself, and would hold the whole iteration until it is collected
        del self._profiler


def operator_pass(loop: "Loop", trace_path: Path, num_iterations: int | None = None) -> OperatorPass:
    """Run some iterations under the profiler with phase and layer marks: by default more of those that are short."""
    probe = OperatorProbe(trace_path, loop.case.device)
    fewest, most = num_iterations or NUM_ITERATIONS, num_iterations or _MOST_ITERATIONS
    # A hook inside a compiled model would break its graph: its operators belong to no layer.
    with contextlib.nullcontext() if loop.case.compiled else layer_marks(loop.model):
        loop.iteration(phase_mark)
        begun, number, last = time.perf_counter(), 0, False
        while not last:
            probe.begin()
            try:
                loop.iteration(phase_mark)
            except BaseException:
                probe.drop()
                raise
            number += 1
            last = number >= fewest and (number >= most or time.perf_counter() - begun >= _ENOUGH_S)
            probe.end(last=last)
    return probe.found()


def export_trace(profiler: profile, path: Path) -> None:
    """Write a packed trace without secrets, names of the user and the name of the host."""
    with tempfile.NamedTemporaryFile(suffix=".json") as plain:
        profiler.export_chrome_trace(plain.name)  # which may put another file in its place
        with open(plain.name, "rb") as written, gzip.open(path, "wb") as packed:
            packed.writelines(redact_chunks(iter(lambda: b"".join(written.readlines(_CHUNK_BYTES)), b"")))


def undisturbed(profiled: Sequence[ProfiledIteration], wall_s: Sequence[float]) -> list[int]:
    """Which iterations count: the quicker half of those that did the same, since what slowed others is not theirs.

    Where they did not all call the same operators with the same shapes, all of them count; beginning another epoch,
    which is in the data phase, does not make an iteration another.

    *Error*: of pairs of 3 iterations of 5 ms on 2 cores, the difference in one operator's time spreads by 55 µs; where
    all count, by 370 µs.
    """
    done = [Counter((call.phase, call.name, call.input_shapes) for call in each.tree.operators if call.phase != "data")
            for each in profiled]
    if any(each != done[0] for each in done):
        return list(range(len(profiled)))
    return sorted(sorted(range(len(profiled)), key=wall_s.__getitem__)[: (len(profiled) + 1) // 2])


def operator_rows(profiled: Sequence[ProfiledIteration]) -> list[dict[str, Any]]:
    """Rows of the table `operators`, per iteration, without FLOP and bytes; what lies outside of phases is left out."""
    totals: dict[tuple[Any, ...], list[float]] = defaultdict(lambda: [0, 0, 0])
    on_cuda = any(iteration.device_ns is not None for iteration in profiled)
    for iteration in profiled:
        device_ns = iteration.device_ns or {}
        for call in iteration.tree.operators:
            if call.phase is not None:
                total = totals[call.phase, call.name, call.operator_type, call.layer, call.input_shapes]
                total[0] += 1
                total[1] += call.self_ns
                total[2] += device_ns.get(call.correlation_id, 0)
    return [
        {"phase": phase, "operator": name, "operator_type": kind, "layer": layer, "input_shapes": shapes,
         "num_calls": num_calls / len(profiled), "self_host_s": self_ns / 1e9 / len(profiled),
         "device_s": launched_ns / 1e9 / len(profiled) if on_cuda else None, "flop": None, "bytes": None}
        for (phase, name, kind, layer, shapes), (num_calls, self_ns, launched_ns) in totals.items()
    ]


def place_flop(operators: list[dict[str, Any]], flop: list[dict[str, Any]]) -> dict[str, float]:
    """Put FLOP and bytes of the FLOP pass onto the operator rows that hold the time of the work.

    Returns what found no row, as the facts `unplaced_flop` and `unplaced_bytes`.

    PyTorch counts on `aten::convolution`, while the time stands on what that calls (`aten::mkldnn_convolution`). So
    the counts of a phase, layer and operator type go to its row with the most time; where the device runs work of
    another type (a GRU is matrix products on fake tensors, one kernel on CUDA), to that of the phase and layer.
    """
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in operators:
        rows[row["phase"], row["layer"], row["operator_type"]].append(row)
        if row["layer"] is not None:
            rows[row["phase"], row["layer"]].append(row)
    unplaced = {"unplaced_flop": 0.0, "unplaced_bytes": 0.0}
    for count in flop:
        place = count["phase"], count["layer"]
        candidates = rows.get((*place, count["operator_type"])) or rows.get(place)
        for quantity in ("flop", "bytes"):
            if count[quantity] is None:
                continue
            if candidates:
                target = max(candidates, key=lambda row: (row["device_s"] or 0.0, row["self_host_s"]))
                target[quantity] = (target[quantity] or 0.0) + count[quantity]
            else:
                unplaced[f"unplaced_{quantity}"] += count[quantity]
    return unplaced


def _phase_s(profiled: Sequence[ProfiledIteration]) -> dict[str, float]:
    """Host time of each phase per iteration, under the profiler, in seconds."""
    seconds: dict[str, float] = defaultdict(float)
    for iteration in profiled:
        for start_ns, end_ns, phase in iteration.tree.phases:
            seconds[phase] += (end_ns - start_ns) / 1e9 / len(profiled)
    return dict(seconds)
