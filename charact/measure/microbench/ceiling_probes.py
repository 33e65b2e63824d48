"""Probes of a machine's ceilings: calls with a known amount of work and little overhead, and their timing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from charact.execution.out_of_memory import free_host_bytes
from charact.execution.precision import float32_products, unsupported_reason
from charact.machine.cache_sizes import cache_levels
from charact.machine.facts import native_bf16
from charact.measure.microbench.call_timer import seconds, time_together
from charact.measure.ranks.processes import with_threads


@dataclass(frozen=True)
class Probe:
    """A call with a known amount of work. Among several probes of a ceiling the fastest counts."""

    ceiling: str
    unit: str
    amount: float
    """FLOP or bytes of a call; 1 if the time of a call is the ceiling."""
    call: Callable[[], object]
    precision: str = "fp32"
    """Precision of float32 products during the call."""
    level: str | None = None
    working_set_bytes: int | None = None
    num_threads: int | None = None
    """Number of threads; None for all."""
    on_host: bool = False
    """Whether the host's time counts for a call on a GPU."""
    launch: Callable[[], object] | None = None
    """The same call on single elements. Its time is subtracted: a GPU takes 2 to 3 µs from one kernel to the next."""


def call_seconds(probe: Probe, device: torch.device) -> float:
    """Return the approximate time of a call (s): of the second one, since the first selects code and wakes threads."""
    seconds_per_call(probe, device, 1)
    return seconds_per_call(probe, device, 1)


def seconds_per_call(probe: Probe, device: torch.device, num_calls: int) -> float:
    """Return the time of a probe's call (s), averaged over `num_calls`; GPU work by CUDA events."""
    with float32_products(probe.precision), with_threads(probe.num_threads):
        times = time_together(lambda: _repeat(probe.call, num_calls), num_calls, device, queued=not probe.on_host)
        if probe.launch is None:
            return times[0] if probe.on_host else seconds(times)
        launch = time_together(partial(_repeat, probe.launch, num_calls), num_calls, device)
    return max(seconds(times) - seconds(launch), seconds(times) / 2)  # subtract no noise of a slow moment


def _repeat(call: Callable[[], object], num_calls: int) -> None:
    for _ in range(num_calls):
        call()


MEMORY_FRAC = 0.25
"""Maximum share of the free memory for all probes together."""

_MEMORY_PROBES_FRAC, _PROBE_FRAC = 0.6, 1 / 16  # shares of that for the memory probes, and for each other probe
_CACHE_MULTIPLE = 4
"""Working set of memory probes in multiples of the last-level cache, which then holds at most a quarter of it."""
_SMALLEST_MEMORY_BYTES = {"cpu": 64 * 2**20, "cuda": 2 * 2**30}
_TRANSFER_BYTES = 64 * 2**20
_SIDES = {"cpu": (512, 1024, 2048, 4096), "cuda": (2048, 4096, 8192)}
_CONVOLUTIONS = ((128, 128, 56, 3), (256, 256, 14, 3), (1024, 256, 14, 1))
"""Channels in and out, side of the output (pixels) and of the kernel: those of residual networks."""
_LONG_S = 0.004
"""If a product takes longer than this, the next larger one (eight times the work) is skipped."""
_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def probes(device: torch.device) -> list[Probe]:
    """Return all probes of a device, with initialized arrays, so that page faults are not measured."""
    free = free_host_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    budget = int(MEMORY_FRAC * free)
    tiny, zero = torch.ones(1, device=device), torch.zeros(1, device=device)
    return [*(probe for precision in _precisions(device) for probe in _products(device, precision, budget)),
            *_bandwidths(device, budget), Probe("launch", "s", 1.0, lambda: tiny.add_(zero), on_host=True),
            *(_transfers(device, budget) if device.type == "cuda" else ())]


def _precisions(device: torch.device) -> list[str]:
    if device.type == "cpu":
        return ["fp32", *(["bf16"] if native_bf16() else [])]
    return [precision for precision in _DTYPES if unsupported_reason(precision, device) is None]


def _products(device: torch.device, precision: str, budget: int) -> Iterator[Probe]:
    dtype = _DTYPES[precision]
    # A separate generator, so that the program's random numbers do not depend on this measurement.
    generator = torch.Generator(device).manual_seed(0)
    for side in _SIDES[device.type]:
        num_bytes = 3 * side**2 * dtype.itemsize
        if num_bytes > _PROBE_FRAC * budget:
            break
        # Random numbers: with zeros a GPU draws less power and runs at a higher clock.
        left, right = (torch.randn(side, side, device=device, generator=generator).to(dtype) for _ in range(2))
        calls: list[Callable[[], object]] = [partial(torch.mm, left, right.t())]
        has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        if device.type == "cpu" and precision == "fp32" and has_onednn:
            # For float32 torch.mm calls MKL, which reaches half of oneDNN's rate on AMD processors.
            calls.append(partial(torch.ops.mkldnn._linear_pointwise, left, right, None, "none", [], ""))
        products = [Probe("gemm", "flop_per_s", 2.0 * side**3, call, precision, working_set_bytes=num_bytes)
                    for call in calls]
        yield from products
        if max(call_seconds(probe, device) for probe in products) > _LONG_S:
            break
    if device.type == "cpu":
        yield from _convolutions(dtype, precision, generator)


def _convolutions(dtype: torch.dtype, precision: str, generator: torch.Generator) -> Iterator[Probe]:
    """Yield convolutions, which oneDNN computes faster than plain products; the best shape depends on the processor."""
    batch = max(4, torch.get_num_threads())
    for in_channels, out_channels, side, kernel in _CONVOLUTIONS:
        padded = side + kernel - 1
        images = torch.randn(batch, in_channels, padded, padded, generator=generator).to(dtype)
        weights = torch.randn(out_channels, in_channels, kernel, kernel, generator=generator).to(dtype)
        num_elements = images.numel() + weights.numel() + batch * out_channels * side**2
        for layout in (torch.contiguous_format, torch.channels_last):
            tensors = (tensor.contiguous(memory_format=layout) for tensor in (images, weights))
            yield Probe("gemm", "flop_per_s", 2.0 * batch * side**2 * in_channels * out_channels * kernel**2,
                        partial(torch.nn.functional.conv2d, *tensors), precision,
                        working_set_bytes=num_elements * dtype.itemsize)


def _bandwidths(device: torch.device, budget: int) -> Iterator[Probe]:
    """Yield copies and triads at the size of each cache and of memory.

    L1 is omitted, since dispatching an operator takes longer than reading it.
    """
    sizes: list[tuple[str, int, int | None]]  # level, working set and threads
    if device.type == "cuda":
        last_cache = int(torch.cuda.get_device_properties(device).L2_cache_size)
        sizes = [("L2", last_cache // 2, None)]
    else:
        levels = cache_levels(torch.get_num_threads())
        outer = [level for level in levels if level.level != "L1"]
        # For one thread and for all: waking threads may dominate small sets.
        sizes = [*((level.level, level.bytes_each // 2, 1) for level in outer),
                 *((level.level, level.usable_bytes // 2, None) for level in outer)]
        last_cache = max((level.usable_bytes for level in levels), default=0)
    for level, num_bytes, num_threads in sizes:
        if num_bytes <= _PROBE_FRAC * budget:
            yield from _streams(device, level, num_bytes, num_threads)
    wanted = max(_CACHE_MULTIPLE * last_cache, _SMALLEST_MEMORY_BYTES[device.type])
    num_bytes = min(wanted, int(_MEMORY_PROBES_FRAC * budget / 1.5))
    if num_bytes >= wanted / 2:
        yield from _streams(device, "memory", num_bytes, None)


def _streams(device: torch.device, level: str, num_bytes: int, num_threads: int | None) -> Iterator[Probe]:
    itemsize = torch.float32.itemsize
    # Filled by all threads, as they will be read: NUMA places a page at the thread that first touches it.
    first, second, third = (torch.ones(num_bytes // 2 // itemsize, device=device) for _ in range(3))
    in_cache = device.type == "cuda" and level != "memory"
    few = [array[:1] for array in (first, second, third)]
    yield Probe("copy", "bytes_per_s", 2.0 * first.nbytes, partial(first.copy_, second), level=level,
                working_set_bytes=2 * first.nbytes, num_threads=num_threads,
                launch=partial(few[0].copy_, few[1]) if in_cache else None)
    parts = [array[: num_bytes // 3 // itemsize] for array in (first, second, third)]
    yield Probe("triad", "bytes_per_s", 3.0 * parts[0].nbytes,
                partial(torch.add, parts[1], parts[2], alpha=1.5, out=parts[0]), level=level,
                working_set_bytes=3 * parts[0].nbytes, num_threads=num_threads,
                launch=partial(torch.add, few[1], few[2], alpha=1.5, out=few[0]) if in_cache else None)


def _transfers(device: torch.device, budget: int) -> Iterator[Probe]:
    num_bytes = min(_TRANSFER_BYTES, int(_PROBE_FRAC * budget), int(MEMORY_FRAC * free_host_bytes()))
    host = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=True)
    there = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    yield Probe("host_to_device", "bytes_per_s", num_bytes, partial(there.copy_, host, non_blocking=True),
                working_set_bytes=num_bytes)
    yield Probe("device_to_host", "bytes_per_s", num_bytes, partial(host.copy_, there, non_blocking=True),
                working_set_bytes=num_bytes)
