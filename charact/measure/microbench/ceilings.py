"""Measured ceilings of a machine: FLOP/s by precision, bytes/s by cache level and memory, and launch overhead."""

import contextlib
import math
import time
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, cast

import torch

from charact.core.statistics import median_interval
from charact.execution.memory_limit import release_memory
from charact.machine.ceilings_cache import Ceiling
from charact.machine.cgroups import quota_cores
from charact.machine.datasheets import datasheet
from charact.machine.facts import device_name, usable_cores
from charact.measure.microbench.call_timer import REPEAT_S, calls_per_repeat
from charact.measure.microbench.ceiling_probes import Probe, call_seconds, probes, seconds_per_call
from charact.measure.passes.resident_memory import reset_resident_peak
from charact.measure.passes.warm_device import warm_device

_NUM_BLOCKS, _NUM_REPEATS = 5, 9
"""Blocks per probe, and repeats per block: the median's interval of 9 values excludes the two extremes."""
_CHECK_SIDE = {"cpu": 768, "cuda": 4096}
_PROBE_S = 0.3
"""Time limit of a probe after its first block."""


def measure_ceilings(device: torch.device) -> list[Ceiling]:
    """Measure a device's ceilings with PyTorch's current number of threads, next to datasheet values. Takes seconds.

    Each probe runs in blocks of 9 repeats. The blocks of all probes take turns, so that other load affects one block of
    many probes instead of all blocks of one. A block's value is its median; the ceiling is the best block of the
    fastest probe, a rate sustained over half a block.

    *Error*: as the best of up to 5 medians, it is slightly above the typical value. A copy counts reads and writes
    (twice its size), a triad a = b + s c three times. Reads of cache lines that are overwritten (write allocation) are
    not counted, so up to a third of a copy's traffic is missing, unless PyTorch uses non-temporal stores. Cache values
    of a CPU include the time to wake threads if all threads are faster than one; from those of a GPU the time of a
    launch is subtracted.
    """
    try:
        with torch.no_grad(), _current(device):
            warm_device(device)
            return [_with_datasheet(row, device) for row in _best_rows(device)]
    finally:  # later measurements must not include this memory or its peak
        release_memory(device)
        reset_resident_peak()


class Speed(NamedTuple):
    """Rate of a product now (FLOP/s), and the share of the cores' time that the process had for it."""

    flop_per_s: float
    cores_frac: float


def check_speed(device: torch.device) -> Speed:
    """Return the best rate of a float32 product in 9 repeats: a tenth of a second, to compare with an earlier one."""
    side = _CHECK_SIDE[device.type]
    with torch.no_grad(), _current(device):
        left, right = (torch.ones(side, side, device=device) for _ in range(2))
        probe = Probe("gemm", "flop_per_s", 2.0 * side**3, lambda: torch.mm(left, right))
        block = _block(probe, device, calls_per_repeat(call_seconds(probe, device), device))
    return Speed(probe.amount / min(block.seconds), block.cores_frac)


def _best_rows(device: torch.device) -> list[Ceiling]:
    timed = [(probe, call_seconds(probe, device)) for probe in probes(device)]
    blocks: list[list[_Repeats]] = [[] for _ in timed]
    for number in range(_NUM_BLOCKS):
        for (probe, call_s), done in zip(timed, blocks, strict=True):
            if number == 0 or (number + 1) * _NUM_REPEATS * max(call_s, REPEAT_S) <= _PROBE_S:
                done.append(_block(probe, device, calls_per_repeat(call_s, device)))
    best: dict[tuple[str, str | None, str | None], Ceiling] = {}
    for (probe, _), done in zip(timed, blocks, strict=True):
        row = _row(device, probe, min(done, key=lambda block: median(block.seconds)))
        key = (row["ceiling"], row["precision"], row["level"])
        sign = -1 if row["unit"] == "s" else 1
        if key not in best or sign * row["value"] > sign * best[key]["value"]:
            best[key] = row
    return list(best.values())


@dataclass(frozen=True)
class _Repeats:
    seconds: list[float]
    """Seconds per call, by repeat."""
    cores_frac: float
    """Share of the cores' time that the process used."""


def _block(probe: Probe, device: torch.device, num_calls: int) -> _Repeats:
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    seconds = [seconds_per_call(probe, device, num_calls) for _ in range(_NUM_REPEATS)]
    cores = min(torch.get_num_threads(), quota_cores() or math.inf, usable_cores())
    return _Repeats(seconds, (time.process_time() - begun_cpu_s) / (time.perf_counter() - begun_s) / cores)


def _row(device: torch.device, probe: Probe, block: _Repeats) -> Ceiling:
    seconds, is_product = block.seconds, probe.ceiling == "gemm"
    interval = median_interval(seconds)
    assert interval is not None
    fast, slow = interval
    if probe.unit == "s":
        value, low, high = median(seconds), fast, slow
    else:
        value, low, high = probe.amount / median(seconds), probe.amount / slow, probe.amount / fast
    return cast(Ceiling, {
        "device": str(device), "ceiling": probe.ceiling,
        "precision": probe.precision if is_product else None,
        "working_set_bytes": probe.working_set_bytes, "level": probe.level,
        "value": value, "low": low, "high": high, "unit": probe.unit,
        "datasheet": None, "datasheet_source": None, "theoretical": None,
        "cores_frac": block.cores_frac if is_product and device.type == "cpu" else None, "origin": None,
    })


def _with_datasheet(row: Ceiling, device: torch.device) -> Ceiling:
    if device.type == "cpu":
        return row
    sheet = datasheet(device_name(device))
    figure = None
    if sheet is not None and row["precision"] is not None:
        figure = sheet.flop_per_s.get(row["precision"])
    elif sheet is not None and row["level"] == "memory":
        figure = sheet.bytes_per_s
    if row["level"] == "memory":
        row["theoretical"] = theoretical_bytes_per_s(torch.cuda.get_device_properties(device))
    if sheet is not None and figure is not None:
        row |= {"datasheet": figure, "datasheet_source": sheet.source}
    return row


def theoretical_bytes_per_s(properties: object) -> float | None:
    """Return a GPU's theoretical memory bandwidth: two transfers per clock over the bus width; None if unknown."""
    clock_khz, width_bits = (getattr(properties, name, 0) for name in ("memory_clock_rate", "memory_bus_width"))
    return 2 * clock_khz * 1e3 * width_bits / 8 or None


def _current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
