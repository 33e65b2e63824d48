"""Counters from a trace: utilization of each device, occupancy of its kernels, and launch delays."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from charact.record.schema import Rows
from charact.traces.device_events import covered_ns, is_communication, is_copy, length_ns, union, without
from charact.traces.events import DeviceEvent, TraceEvents

SOURCE = "kineto"
SCOPE = "what the traced program ran on the device"
DEFINITIONS: dict[str, tuple[str, Literal["measured", "estimated"]]] = {
    # counter: definition, method
    "span_s": ("time from the device's first event in the trace to its last; of several traces the sum", "measured"),
    "busy_s": ("time in which a kernel or a copy ran, however many at once", "measured"),
    "idle_s": ("time in which neither ran", "measured"),
    "utilization_frac": ("share of the time in which a kernel or a copy ran: over the marked iterations, from the "
                         "first one's start to the end of the last one and of the work launched in them; without "
                         "marked iterations, of span_s", "measured"),
    "computation_s": ("time in which a kernel other than communication ran, or a fill", "measured"),
    "communication_s": ("time in which a kernel that exchanges data between ranks ran", "measured"),
    "exposed_communication_s": ("the part of communication_s in which nothing was computed", "measured"),
    "overlapped_communication_s": ("the part of communication_s in which something was computed, too", "measured"),
    "copy_s": ("time in which memory was copied", "measured"),
    "exposed_copy_s": ("the part of copy_s in which no kernel ran", "measured"),
    "num_gaps": ("times between two kernels in which no kernel ran", "measured"),
    "gap_s": ("time of these gaps together, copies and fills in them included", "measured"),
    "launch_delay_s": ("median time from the call that launched a kernel to its start, including the wait for "
                       "kernels before it", "measured"),
    "tensor_core_frac": ("share of computing kernels' time in kernels that, by their names, use tensor cores (on AMD's "
                         "devices matrix cores)", "estimated"),
    "warp_occupancy_frac": ("active warps over those that the device could hold, from the kernels' launch geometry, "
                            "weighted by their time; blind to tails and to threads that end early", "estimated"),
}
NO_KERNELS = "the trace has no kernels"
_MISSING = {
    "launch_delay_s": "the trace lacks the calls that launched the kernels",
    "tensor_core_frac": "the trace has no kernels that compute",
    "warp_occupancy_frac": "the trace lacks the kernels’ occupancy",
}
"""Why a counter is missing, for those that not every trace has."""


def described() -> dict[str, dict[str, dict[str, str]]]:
    """Return the descriptions of these counters, for the manifest."""
    return {SOURCE: {name: {"definition": definition, "method": method, "scope": SCOPE}
                     for name, (definition, method) in DEFINITIONS.items()}}


def counter_rows(traces: Sequence[TraceEvents], rank: int | None,
                 marked: Sequence[tuple[int, int] | None] | None = None) -> Rows:
    """Return rows of the table `counters`: use of each device, over consecutive traces of one program.

    Counters without events are left out. `marked` has, for each trace, the start of its first marked iteration and the
    end of its last one; None without marked iterations.
    """
    by_device: dict[str, list[list[DeviceEvent]]] = defaultdict(list)
    delays_ns: dict[str, list[int]] = defaultdict(list)
    windows: dict[str, list[tuple[int, int]]] = defaultdict(list)
    tolerance_ns = max((trace.resolution_ns for trace in traces), default=0)
    for trace, iterations in zip(traces, marked or [None] * len(traces), strict=True):
        of_trace: dict[str, list[DeviceEvent]] = defaultdict(list)
        for event in trace.device:
            of_trace[event.device].append(event)
        for device, events in of_trace.items():
            by_device[device].append(events)
            windows[device].append(_window(events, iterations))
            delays_ns[device] += [event.start_ns - trace.launches[event.correlation].start_ns
                                  for event in _kernels(events)
                                  if event.correlation is not None and event.correlation in trace.launches]
    rows: Rows = []
    for device, of_device in sorted(by_device.items()):
        running = [union(((event.start_ns, event.end_ns) for event in _kernels(events)), tolerance_ns)
                   for events in of_device]
        gaps_ns = [after - before for each in running for (_, before), (after, _) in pairwise(each)]
        gaps = {"num_gaps": len(gaps_ns), "gap_s": sum(gaps_ns) / 1e9}
        values = _times(of_device, windows[device], tolerance_ns) | gaps | _shares(of_device)
        if delays_ns[device]:
            values["launch_delay_s"] = median(delays_ns[device]) / 1e9
        rows += [{"phase": None, "time_s": None, "rank": rank, "device": f"cuda:{device}", "source": SOURCE,
                  "kernel": None, "counter": counter, "value": values[counter]}
                 for counter in DEFINITIONS if counter in values]
    return rows


def outcome(rows: Rows, reason: str | None = None, remedy: str | None = None) -> dict[str, Any]:
    """Return the outcome of these counters, for the manifest.

    Args:
        rows: rows of `counter_rows`.
        reason: why there are none, if known.
        remedy: advice.
    """
    if not rows:
        return {"status": "n/a", "reason": reason or NO_KERNELS, "remedy": remedy, "missing": {}}
    known = {row["counter"] for row in rows}
    missing = {name: why for name, why in _MISSING.items() if name not in known}
    return {"status": "ok", "reason": None, "remedy": None, "missing": missing}


def _window(events: Sequence[DeviceEvent], iterations: tuple[int, int] | None) -> tuple[int, int]:
    """Return the start and end of marked iterations on a device; without any, those of its events.

    The device starts when the work launched before the iterations ends, and ends with the work launched in them.
    """
    if iterations is not None:
        start_ns, end_ns = iterations
        begin_ns = max((event.end_ns for event in events if event.launched_ns is None or event.launched_ns < start_ns),
                       default=start_ns)
        until_ns = max((event.end_ns for event in events if event.launched_ns is not None
                        and event.launched_ns <= end_ns), default=end_ns)
        window = max(begin_ns, start_ns), max(until_ns, end_ns)
        if window[0] < window[1]:
            return window
    return min(event.start_ns for event in events), max(event.end_ns for event in events)


def _times(traces: Sequence[Sequence[DeviceEvent]], windows: Sequence[tuple[int, int]],
           tolerance_ns: int) -> dict[str, float]:
    """Return the use of a device from its first event in each trace to its last; fills count as computation."""
    spent_ns: dict[str, int] = defaultdict(int)
    used_ns = 0
    for events, window in zip(traces, windows, strict=True):
        kinds: dict[str, list[tuple[int, int]]] = {"computation": [], "communication": [], "copy": []}
        for event in events:
            kind = "communication" if is_communication(event) else "copy" if is_copy(event) else "computation"
            kinds[kind].append((event.start_ns, event.end_ns))
        computation, communication, copies = map(union, kinds.values())
        working = union([*computation, *communication])
        busy = union([*working, *copies], tolerance_ns)
        used_ns += covered_ns(busy, *window)
        spent_ns["span_s"] += max(event.end_ns for event in events) - min(event.start_ns for event in events)
        for counter, intervals in {
            "busy_s": busy, "computation_s": computation, "communication_s": communication,
            "exposed_communication_s": without(communication, computation), "copy_s": copies,
            "exposed_copy_s": without(copies, working),
        }.items():  # fmt: skip
            spent_ns[counter] += length_ns(intervals)
    spent_ns["idle_s"] = spent_ns["span_s"] - spent_ns["busy_s"]
    spent_ns["overlapped_communication_s"] = spent_ns["communication_s"] - spent_ns["exposed_communication_s"]
    whole_ns = sum(end_ns - start_ns for start_ns, end_ns in windows)
    utilization_frac = used_ns / whole_ns if whole_ns else 1.0
    return {counter: time_ns / 1e9 for counter, time_ns in spent_ns.items()} | {"utilization_frac": utilization_frac}


def _shares(traces: Sequence[Sequence[DeviceEvent]]) -> dict[str, float]:
    """Return shares of kernels' time; Kineto reports unknown occupancies as null."""
    computing = [event for events in traces for event in _kernels(events) if not is_communication(event)]
    shares = {}
    if total_ns := _length_ns(computing):
        on_tensor_cores = [event for event in computing if uses_tensor_cores(event.name)]
        shares["tensor_core_frac"] = _length_ns(on_tensor_cores) / total_ns
    known = [event for event in computing if event.geometry[4] is not None]
    if known_ns := _length_ns(known):
        shares["warp_occupancy_frac"] = sum(
            (event.end_ns - event.start_ns) * (event.geometry[4] or 0.0) for event in known) / known_ns
    return shares


def _kernels(events: Iterable[DeviceEvent]) -> list[DeviceEvent]:
    return [event for event in events if event.kind == "kernel"]


def _length_ns(events: Iterable[DeviceEvent]) -> int:
    return sum(event.end_ns - event.start_ns for event in events)


_RULES: tuple[tuple[str, str], ...] = (
    # pattern (case-sensitive: MIOpen's SubTensorOp is elementwise), origin of such names
    (r"tensorop", "CUTLASS, operator class TensorOp (include/cutlass/library); also in cuBLAS and cuDNN"),
    (r"(?<![0-9A-Za-z])[hsdib](884|1688|16816|161616|8816|16832|16864|168256)(?!\d)",
     "cuBLAS, cuDNN, CUTLASS: accumulator's type and the instruction's shape m, n, k, Volta to Ada, as in s16816gemm"),
    (r"(?<![A-Za-z])[hidbqo]mma(?![a-z])", "the instructions in machine code: HMMA, IMMA, DMMA, BMMA, QMMA, OMMA"),
    (r"gmma", "Hopper's instructions for groups of warps: GMMA in machine code, wgmma in PTX"),
    (r"wmma", "the warp matrix interface of CUDA C++, and of AMD's graphics cards from RDNA 3 on"),
    (r"xmma_.*(bf16|f16|tf32|i8|e4m3|e5m2)", "cuBLAS and cuDNN: xmma's kernels name the types that they multiply"),
    (r"(^|[^a-z])nvjet_", "cuBLAS from CUDA 12.8 on, Hopper and later"),
    (r"flash_(fwd|bwd)(?!.*(combine|dot_do_o|convert_d|clear_d))|FlashAttn(Fwd|Bwd)Sm(80|90|100)",
     "FlashAttention (csrc/flash_attn/src, hopper/): all but its preparing and combining kernels"),
    (r"_flash_(fprop|bprop)", "cuDNN's attention"),
    (r"fmha_cutlass[FB]_(b?f16\w*_sm[789]|f32\w*_sm80)",
     "PyTorch's memory-efficient attention: from Volta on in 16 bits, from Ampere on in float32, too"),
    (r"^Cijk_.*_MI\d", "rocBLAS, hipBLASLt (Tensile): MI and the matrix instruction's shape"),
    (r"mfma|xdl", "AMD: the instruction's name, and what Composable Kernel and MIOpen call it"),
    (r"^igemm_\w+_gtcx", "MIOpen's implicit GEMM in assembly: x for xdlops"),
    (r"Fmha(Fwd|BwdDQDKDV)Kernel", "Composable Kernel's attention (include/ck_tile/ops/fmha)"),
)
_PATTERN = re.compile("|".join(f"(?:{pattern})" for pattern, _ in _RULES))


@cache
def uses_tensor_cores(kernel: str) -> bool:
    """Return whether a kernel, by its name, uses tensor cores or matrix cores."""
    return _PATTERN.search(kernel) is not None
