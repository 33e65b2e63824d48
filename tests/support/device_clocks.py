"""Clocks of a device that charact has no part in: whole blocks, events, replays of a graph, a trace read here."""

import contextlib
import gc
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.execution.precision import float32_products

MARK = "truth:"
_NUM_IN_GRAPH, _NUM_REPLAYS = 20, 3


def unmarked(_: str) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def running(case: Case) -> Iterator[Loop]:
    """Yield a case in execution; afterwards its memory is free again."""
    with float32_products(case.precision):
        loop = Loop(case)
        try:
            yield loop
        finally:
            loop.close()
            del loop
            gc.collect()
            if case.device.type == "cuda":
                torch.cuda.empty_cache()


def heat(loop: Loop, seconds: float) -> None:
    """Repeat iterations, so that clocks rise."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        loop.iteration(unmarked)
        wait(loop.case.device)


def block_s(loop: Loop, num_iterations: int, mark: Callable[[str], AbstractContextManager[object]] = unmarked) -> float:
    """Return the time of an iteration, of a block between two waits, by the host's clock."""
    wait(loop.case.device)
    begun = time.perf_counter()
    for _ in range(num_iterations):
        loop.iteration(mark)
    wait(loop.case.device)
    return (time.perf_counter() - begun) / num_iterations


def marked_block_s(loop: Loop, num_iterations: int, phases: Any) -> float:
    """Return the time of an iteration with charact's marks of phases, of a block between two waits."""
    wait(loop.case.device)
    begun = time.perf_counter()
    for _ in range(num_iterations):
        with phases:
            loop.iteration(phases)
        phases.take()
    wait(loop.case.device)
    spent_s = (time.perf_counter() - begun) / num_iterations
    phases.take(wait=True)
    return spent_s


def kernel_s(loop: Loop, path: Path, num_iterations: int) -> dict[str, float]:
    """Return the time of kernels and copies of an iteration by the phase of their launch (s), from a trace."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(num_iterations):
            loop.iteration(lambda phase: record_function(MARK + phase))
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    marks = [(event["ts"], event["ts"] + event["dur"], event["name"].removeprefix(MARK)) for event in events
             if event.get("cat") == "user_annotation" and event["name"].startswith(MARK)]
    launched = {event["args"]["correlation"]: event["ts"] for event in events
                if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})}
    spent: dict[str, float] = defaultdict(float)
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            at = launched.get(event["args"].get("correlation"), -1)
            phase = next((phase for start, end, phase in marks if start <= at <= end), "other")
            spent[phase] += event["dur"] / 1e6 / num_iterations
    return spent


def events_s(work: Callable[[], object], *, behind: int = 0) -> float:
    """Return the time between two events around some work (s).

    Args:
        work: launches the work.
        behind: cycles for which the device sleeps before, so that the work is queued when it begins.
    """
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    if behind:
        torch.cuda._sleep(behind)  # type: ignore[no-untyped-call]
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def queued_s(call: Callable[[], object], num_calls: int) -> float:
    """Return the median time of a call, of calls that were queued behind a long sleep."""
    def calls() -> None:
        for _ in range(num_calls):
            call()

    times = [events_s(calls, behind=20_000_000) for _ in range(10)]
    return median(times[3:]) / num_calls


def graph_s(call: Callable[[], object]) -> float:
    """Return the median time of a call in replays of a CUDA graph, where no launch is waited for."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_NUM_IN_GRAPH):
            call()

    def replays() -> None:
        for _ in range(_NUM_REPLAYS):
            graph.replay()

    return median(events_s(replays) for _ in range(15)) / (_NUM_REPLAYS * _NUM_IN_GRAPH)


def spin_kernel() -> Any:
    """Return a kernel whose threads all wait for a number of cycles; None if this PyTorch compiles no kernels."""
    if not hasattr(torch.cuda, "_compile_kernel"):
        return None
    return torch.cuda._compile_kernel(
        'extern "C" __global__ void spin(int cycles) { long long begun = clock64(); '
        "while (clock64() - begun < cycles); }", "spin")


@contextlib.contextmanager
def sampled_powers_w(gpu: Any) -> Iterator[list[tuple[float, float]]]:
    """Yield a list to which a thread adds times and instantaneous powers of a GPU (W), 50 a second.

    Args:
        gpu: NVML's handle.
    """
    import pynvml

    powers_w: list[tuple[float, float]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            field = pynvml.nvmlDeviceGetFieldValues(gpu, [pynvml.NVML_FI_DEV_POWER_INSTANT])[0]
            if field.nvmlReturn == pynvml.NVML_SUCCESS:
                powers_w.append((time.perf_counter(), field.value.uiVal / 1e3))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield powers_w
    finally:
        stop.set()
        watcher.join()


def peak_bytes_per_s(gpu: Any) -> float:
    """Return the bandwidth of a GPU's memory by its clock and width, as the driver reports them.

    Args:
        gpu: NVML's handle.
    """
    import pynvml

    clock_hz = pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_MEM) * 1e6
    return float(2 * clock_hz * pynvml.nvmlDeviceGetMemoryBusWidth(gpu) / 8)


def allocated_peak(case: Case) -> tuple[int, int]:
    """Return the most that a later iteration has allocated, and that has been reserved until then (bytes)."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    with running(case) as loop:
        for _ in range(2):
            loop.iteration(unmarked)
        torch.cuda.reset_peak_memory_stats()
        loop.iteration(unmarked)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, torch.cuda.max_memory_reserved() - before
