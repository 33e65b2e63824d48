"""The best that a machine reaches: FLOP/s by precision, bytes/s by cache and memory, the cost of a launch."""

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import cast

import torch

from charact.core.statistics import median_interval
from charact.execution.memory_limit import release_memory
from charact.machine.ceilings_cache import Ceiling
from charact.machine.cgroups import quota_cores
from charact.machine.datasheets import datasheet
from charact.machine.facts import device_name, usable_cores
from charact.measure.microbench.ceiling_probes import probes
from charact.measure.microbench.probe import Probe, call_seconds, seconds_per_call
from charact.measure.passes.resident_memory import reset_resident_peak

_NUM_BLOCKS, _NUM_REPEATS = 5, 9
"""Blocks a probe, and repeats a block: of 9 values the interval of the median leaves out the two ends."""
_PROBE_S = 0.3
"""Time that a probe may take, beyond one block."""
_REPEAT_S = 1e-3
"""Shortest repeat: the clock and the loop around the calls are then below a thousandth of it."""
_MOST_CALLS = {"cpu": 1000, "cuda": 100}
"""Calls a repeat; a GPU's queue takes a thousand before the host has to wait."""


def measure_ceilings(device: torch.device) -> list[Ceiling]:
    """Ceilings of a device, with PyTorch's present number of threads, beside its maker's figures. Takes some seconds.

    Each probe runs in blocks of 9 repeats, the blocks of all probes in turns, so that other load hits one block of
    many and not all of one. A block's value is its median; the ceiling is the best block of the fastest probe, a rate
    that was kept up through half a block, not one lucky repeat.

    *Error*: being the best of up to 5 medians it lies a little above the typical one. A copy counts what it reads and
    writes (twice its size), a triad a = b + s c three times. What the processor reads of lines that it is about to
    overwrite is not counted, so up to a third of a copy's traffic is missing; stores that pass the cache by avoid it,
    and PyTorch decides whether it has them. Caches include waking the threads where that is faster than one thread.
    """
    try:
        with torch.no_grad(), _current(device):
            return [_beside_datasheet(row, device) for row in _best_rows(device)]
    finally:  # what is measured next is to see neither the memory that this took nor its peak
        release_memory(device)
        reset_resident_peak()


def _best_rows(device: torch.device) -> list[Ceiling]:
    best: dict[tuple[str, str | None, str | None], Ceiling] = {}
    for probe, block in _fastest_blocks(device):
        row = _row(device, probe, block)
        key = (row["ceiling"], row["precision"], row["level"])
        if key not in best or _is_better(row, best[key]):
            best[key] = row
    return list(best.values())


@dataclass(frozen=True)
class _Block:
    seconds: list[float]
    """Of a call, by repeat."""
    cores_frac: float
    """Share of the cores' time that the process had."""


def _fastest_blocks(device: torch.device) -> Iterator[tuple[Probe, _Block]]:
    """Each probe with its best block."""
    kept = [(probe, call_seconds(probe, device)) for probe in probes(device)]
    blocks: list[list[_Block]] = [[] for _ in kept]
    for number in range(_NUM_BLOCKS):
        for (probe, call_s), done in zip(kept, blocks, strict=True):
            if number == 0 or (number + 1) * _NUM_REPEATS * max(call_s, _REPEAT_S) <= _PROBE_S:
                num_calls = min(_MOST_CALLS[device.type], math.ceil(_REPEAT_S / call_s))
                done.append(_block(probe, device, num_calls))
    for (probe, _), done in zip(kept, blocks, strict=True):
        yield probe, min(done, key=lambda block: median(block.seconds))


def _block(probe: Probe, device: torch.device, num_calls: int) -> _Block:
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    seconds = [seconds_per_call(probe, device, num_calls) for _ in range(_NUM_REPEATS)]
    cores = min(torch.get_num_threads(), quota_cores() or math.inf, usable_cores())
    return _Block(seconds, (time.process_time() - begun_cpu_s) / (time.perf_counter() - begun_s) / cores)


def _row(device: torch.device, probe: Probe, block: _Block) -> Ceiling:
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
        "cores_frac": block.cores_frac if is_product and device.type == "cpu" else None,
    })


def _is_better(row: Ceiling, other: Ceiling) -> bool:
    return row["value"] < other["value"] if row["unit"] == "s" else row["value"] > other["value"]


def _beside_datasheet(row: Ceiling, device: torch.device) -> Ceiling:
    """The row with what the maker says of a GPU's products and memory; a CPU's datasheet gives no such figures."""
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
    """What a GPU's memory could move: two transfers a clock over the bus's whole width; None where neither is told."""
    clock_khz, width_bits = (getattr(properties, name, 0) for name in ("memory_clock_rate", "memory_bus_width"))
    return 2 * clock_khz * 1e3 * width_bits / 8 or None


def _current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
