"""Operator pass: a few iterations under `torch.profiler`, for shares by operator, layer and kernel."""

import contextlib
import gzip
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

from charact.core.errors import UserError
from charact.core.timeline import sums, with_rest
from charact.execution.case_outcome import one_line
from charact.measure.passes.event_tree import EventTree, read_event_tree
from charact.measure.passes.marks import layer_marks, phase_mark
from charact.measure.passes.replayed_work import replayed_work
from charact.record.manifest_passes import OperatorsPass
from charact.record.redaction import redact_chunks
from charact.traces.counters import counter_rows
from charact.traces.device_events import device_ns_by_operator
from charact.traces.phases import AttributedTrace, attribute
from charact.traces.reader import read_trace
from charact.traces.tables import kernel_rows, rows_of_calls

if TYPE_CHECKING:
    from charact.execution.loop import Loop

NUM_ITERATIONS = 3
"""Number of profiled iterations of a user's program, and the minimum for a case."""
_MAX_ITERATIONS = 12
_MIN_PROFILED_S = 0.5
"""Duration in seconds for which iterations are profiled: short iterations vary most, so more are profiled."""
_CHUNK_BYTES = 1 << 18
_COMPRESSION = 6
"""Level of gzip: level 9 takes five times as long and saves a fifth."""
_NO_KERNELS = ("PyTorch's profiler recorded no kernels: another profiler may hold the device, or PyTorch was built "
               "without CUPTI; end the other profiler, and measure again")
_ACTIVITIES = {False: [ProfilerActivity.CPU], True: [ProfilerActivity.CPU, ProfilerActivity.CUDA]}


@dataclass(frozen=True)
class OperatorPass:
    """Result of the operator pass: rows of `operators`, `kernels` and `counters`, and facts; `flop` if replayed.

    Only exported traces contain launch geometry, so kernels and counters are read from them.
    """

    operator_rows: list[dict[str, Any]]
    kernel_rows: list[dict[str, Any]]
    counter_rows: list[dict[str, Any]]
    facts: OperatorsPass
    flop_rows: Sequence[dict[str, Any]] = ()
    flop_facts: dict[str, Any] | None = None
    """Facts of the replayed work, or the reason why it failed; None if it was not replayed."""


@dataclass(frozen=True)
class ProfiledIteration:
    """Events of one profiled iteration; on CUDA also device time in ns by the operator's correlation ID."""

    tree: EventTree
    device_ns: Mapping[int, int] | None


class OperatorProbe:
    """Profiles iterations, each between `begin` and `end`, and writes the trace of the last one.

    Each iteration has its own profiler: a profiler's memory fragments the C heap, so that a second iteration under it
    touches new pages (ResNet-50 at 224 px, batch 8: 1.8 times as slow, instead of 1.03 times).

    *Error*: the profiler adds some microseconds to each operator, so use its shares, and times from the timing pass.
    Stacks are not recorded: they would break the phases' spans in trace viewers.

    `replays_work`: whether FLOP and bytes of the last iteration are counted by `replayed_work`.
    """

    def __init__(self, trace_path: Path, device: torch.device, *, replays_work: bool = False) -> None:
        self._trace_path, self._device = trace_path, device
        self._on_cuda = device.type == "cuda"
        self._wall_s: list[float] = []
        self._profiled: list[ProfiledIteration] = []
        self._traces: list[AttributedTrace] = []
        self._replays_work = replays_work
        self._work: tuple[list[dict[str, Any]], dict[str, Any] | None] = [], None

    def begin(self) -> None:
        """Start to profile an iteration."""
        if self._on_cuda:  # so that earlier kernels are not in the trace
            torch.cuda.synchronize(self._device)
        # There is one cycle, so that `acc_events` only spares a warning that PyTorch prints before 2.13. It makes the
        # end of a profile nine times as long: 78 instead of 9 µs an event.
        self._profiler = profile(activities=_ACTIVITIES[self._on_cuda], record_shapes=True,
                                 acc_events=torch.__version__ < "2.13")
        self._profiler.start()
        self._begun = time.perf_counter()
        self._step = torch.profiler.record_function(f"ProfilerStep#{len(self._profiled)}")
        self._step.__enter__()  # type: ignore[no-untyped-call]

    def end(self, *, last: bool) -> None:
        """End the iteration and read its events."""
        self._stop()
        if self._on_cuda or last:
            export_trace(self._profiler, self._trace_path)
        if self._on_cuda:
            self._traces.append(attribute(read_trace(self._trace_path).events))
        device_ns = device_ns_by_operator(self._traces[-1].events) if self._on_cuda else None
        replays = last and self._replays_work
        tree = read_event_tree(self._profiler, with_inputs=replays)
        self._profiled.append(ProfiledIteration(tree, device_ns))
        if replays:
            try:
                self._work = replayed_work(tree, self._profiler, on_cuda=self._on_cuda)
            except Exception as error:
                self._work = [], {"status": "failed", "reason": one_line(error)}
        self._forget()

    def profiled_s(self) -> float:
        """Return the time (s) that the iterations took so far, the running one included.

        The time that charact takes to read their events is not in it.
        """
        return sum(self._wall_s) + time.perf_counter() - self._begun

    def drop(self) -> None:
        """End the iteration and discard it."""
        self._stop()
        self._wall_s.pop()
        self._forget()

    def found(self) -> OperatorPass:
        """Return the results of the counted iterations."""
        if self._on_cuda and not any(trace.events.device for trace in self._traces):
            raise UserError(_NO_KERNELS)
        counted = undisturbed(self._profiled, self._wall_s)
        profiled = [self._profiled[number] for number in counted]
        lengths = sums(span for iteration in profiled for span in iteration.tree.phases)
        phase_s = {phase: ns / 1e9 / len(profiled) for phase, ns in lengths.items()}
        wall_s = max(fmean(self._wall_s[number] for number in counted), sum(phase_s.values()))
        traces = [self._traces[number] for number in counted] if self._on_cuda else []
        rows, (flop_rows, flop_facts) = operator_rows(profiled), self._work
        if flop_rows and flop_facts is not None:
            flop_facts = flop_facts | attribute_flop(rows, flop_rows)
        return OperatorPass(
            operator_rows=rows, flop_rows=flop_rows, flop_facts=flop_facts, kernel_rows=kernel_rows(traces),
            counter_rows=counter_rows([trace.events for trace in traces], 0, [trace.marked for trace in traces]),
            facts=OperatorsPass("ok", num_iterations=len(self._profiled), num_counted_iterations=len(profiled),
                                iteration_s=median(self._wall_s), phase_s=with_rest(phase_s, wall_s)),
        )

    def _stop(self) -> None:
        self._step.__exit__(None, None, None)
        if self._on_cuda:
            torch.cuda.synchronize(self._device)
        self._wall_s.append(time.perf_counter() - self._begun)
        self._profiler.stop()

    def _forget(self) -> None:
        vars(self._profiler).clear()  # it contains reference cycles, and would keep the iteration's tensors alive
        del self._profiler


def operator_pass(loop: "Loop", trace_path: Path, num_iterations: int | None = None) -> OperatorPass:
    """Profile iterations with phase and layer annotations; by default more of them if they are short."""
    probe = OperatorProbe(trace_path, loop.case.device)
    fewest, most = num_iterations or NUM_ITERATIONS, num_iterations or _MAX_ITERATIONS
    # A hook inside a compiled model would break its graph: its operators belong to no layer.
    with contextlib.nullcontext() if loop.case.compiled else layer_marks(loop.model):
        loop.place(0.5)
        loop.iteration(phase_mark)
        number, last = 0, False
        while not last:
            probe.begin()
            try:
                loop.iteration(phase_mark)
            except BaseException:
                probe.drop()
                raise
            number += 1
            last = number >= fewest and (number >= most or probe.profiled_s() >= _MIN_PROFILED_S)
            probe.end(last=last)
    return probe.found()


def export_trace(profiler: profile, path: Path) -> None:
    """Write a compressed trace without secrets, user names and the host's name."""
    with tempfile.NamedTemporaryFile(suffix=".json") as plain:
        profiler.export_chrome_trace(plain.name)  # may replace the file
        with open(plain.name, "rb") as written, gzip.open(path, "wb", _COMPRESSION) as packed:
            packed.writelines(redact_chunks(iter(lambda: b"".join(written.readlines(_CHUNK_BYTES)), b"")))


def undisturbed(profiled: Sequence[ProfiledIteration], wall_s: Sequence[float]) -> list[int]:
    """Return the indices of the iterations to count: the faster half, least disturbed by other load.

    If they did not call the same operators with the same shapes, all of them count. Data phases are not compared, since
    an iteration may begin a new epoch.

    *Error*: between pairs of 3 iterations of 5 ms on 2 cores, one operator's time differs by 55 µs (standard
    deviation); if all iterations count, by 370 µs.
    """
    done = [Counter((call.phase, call.name, call.input_shapes) for call in each.tree.operators if call.phase != "data")
            for each in profiled]
    if any(each != done[0] for each in done):
        return list(range(len(profiled)))
    return sorted(sorted(range(len(profiled)), key=wall_s.__getitem__)[: (len(profiled) + 1) // 2])


def operator_rows(profiled: Sequence[ProfiledIteration]) -> list[dict[str, Any]]:
    """Return rows of the table `operators`, per iteration, without FLOP and bytes.

    Operators in no phase belong to `other`. An operator that calls itself, for another layout or device, counts once.
    """
    calls = [((call.phase or "other", call.name, call.operator_type, call.layer, call.input_shapes, call.dtype),
              int(not call.calls_itself), call.self_ns, (iteration.device_ns or {}).get(call.correlation_id, 0))
             for iteration in profiled for call in iteration.tree.operators]
    return rows_of_calls(calls, len(profiled), on_device=any(each.device_ns is not None for each in profiled))


def attribute_flop(operators: list[dict[str, Any]], flop: list[dict[str, Any]]) -> dict[str, float]:
    """Attribute FLOP and bytes of the FLOP pass to the operator rows that contain the time of the work.

    Return FLOP and bytes without a row, as the facts `unplaced_flop` and `unplaced_bytes`.

    PyTorch counts FLOP on `aten::convolution`, but the time is in an operator that it calls
    (`aten::mkldnn_convolution`). So the counts of a phase, layer and operator type go to its row with the most time. If
    there is none (a GRU is matrix products on fake tensors, one kernel on CUDA), they go to the row of the phase and
    layer.
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
