"""Timing one direction of an operation, on inputs that no cache holds, and checking its result against float64."""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from charact.execution.out_of_memory import free_host_bytes
from charact.machine.cache_sizes import cache_levels
from charact.measure.passes.timing import StopRule, ended_by, spread_frac, warm_up
from charact.ops import Prepared

Inputs = Sequence[torch.Tensor]

REPETITION_S = 1e-3
"""Shortest repetition: the clock and the loop around the calls are then below a thousandth of it."""
_MOST_CALLS = {"cpu": 1000, "cuda": 100}
"""Calls a repetition; a GPU's queue takes a thousand before the host has to wait."""
_SLEEP_CYCLES = 2_000_000
"""A GPU waits so long, about a millisecond, before its calls, which are queued meanwhile: no launch is waited for."""
_FEW_CACHES = 2
"""Before inputs come round again so many times the last cache has gone through it."""
_MOST_INPUTS = 4096
_MEMORY_FRAC = 0.25
"""Share of the free memory that all inputs may take."""


@dataclass(frozen=True)
class OperationTiming:
    """What timing found: rows of the table `repetitions` without case and direction, and how it went."""

    rows: list[dict[str, Any]]
    facts: dict[str, Any]


def rotated_inputs(prepared: Prepared, device: torch.device, *, hot: bool) -> list[Inputs]:
    """Sets of inputs, of which each call takes the next one; a single one where they are to stay in the cache.

    There are so many that a set has left the cache before it is taken again, as far as a quarter of the free memory
    goes.

    *Error*: of problems below a few kB, 4096 sets may fit into the cache nevertheless; and so may what a call reads of
    inputs that it does not read as a whole, such as the rows of a table that words are looked up in.
    """
    first = prepared.inputs()
    if hot:
        return [first]
    num_bytes = max(1, sum(map(tensor_bytes, first)))
    wanted = 1 + math.ceil(_FEW_CACHES * cache_bytes(device) / num_bytes)
    free = free_host_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    number = min(wanted, _MOST_INPUTS, 1 + int(_MEMORY_FRAC * free / num_bytes))
    return [first, *(prepared.inputs() for _ in range(number - 1))]


def cache_bytes(device: torch.device) -> int:
    """Size of the last cache that all threads share."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return max((level.usable_bytes for level in cache_levels(torch.get_num_threads())), default=0)


def near_cache_bytes(device: torch.device) -> int:
    """Size of the caches before the last one that the threads have to themselves; 0 where none is told, and of a GPU.

    A GPU's multiprocessors keep nothing from one kernel to the next.
    """
    levels = [] if device.type == "cuda" else cache_levels(torch.get_num_threads())
    return levels[-2].usable_bytes if len(levels) > 1 else 0


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes of what a tensor holds; of a sparse one its values and their places."""
    if tensor.layout is torch.strided:
        return tensor.nbytes
    if tensor.layout is torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    else:
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return sum(part.nbytes for part in parts)


def time_direction(prepared: Prepared, rotated: Sequence[Inputs], device: torch.device, rule: StopRule,
                   on_repetition: Callable[[int, float], None]) -> OperationTiming:
    """Warm up until calls are alike, then repeat until the rule is met.

    A repetition is as many calls as take a millisecond, one where a call takes longer. A CPU's time is the host's; a
    GPU's is between events, its calls being queued before it begins with the first. What a call allocates for its
    result is part of it.

    *Error*: as of the timing pass, clock changes and other load shift repetitions together.

    Args:
        prepared: what is called.
        rotated: what it is called with, in turns.
        device: where it runs.
        rule: when to stop; its iterations are repetitions.
        on_repetition: told (repetitions so far, median seconds of a call) between repetitions.
    """
    begun = time.perf_counter()
    turns = itertools.cycle(rotated)
    repeat = _on_device if device.type == "cuda" else _on_host
    warmup_ended_by, warmup_s = warm_up(lambda: [_seconds(repeat(prepared, turns, 1))], rule)
    num_calls = min(_MOST_CALLS[device.type], math.ceil(REPETITION_S / min(warmup_s)))
    rows: list[dict[str, Any]] = []
    seconds: list[float] = []
    while (reason := ended_by(seconds, len(rows), rule, time.perf_counter() - begun)) is None:
        times = repeat(prepared, turns, num_calls)
        seconds.append(_seconds(times))
        rows.append({"repetition": len(rows), "num_calls": num_calls, "host_s": times[0], "device_s": times[1]})
        on_repetition(len(rows), median(seconds))
    return OperationTiming(rows, {
        "num_warmup_calls": len(warmup_s), "warmup_ended_by": warmup_ended_by, "num_repetitions": len(rows),
        "num_calls": num_calls, "ended_by": reason, "precision_target_frac": rule.precision_target_frac,
        "interval_frac": spread_frac(seconds), "num_inputs": len(rotated),
        "inputs_bytes": sum(map(tensor_bytes, rotated[0])), "cache_bytes": cache_bytes(device),
    })


Times = tuple[float, float | None]
"""Of one call, on the host's clock and on the device's."""


def _seconds(times: Times) -> float:
    host_s, device_s = times
    return host_s if device_s is None else device_s


def _on_host(prepared: Prepared, turns: "itertools.cycle[Inputs]", num_calls: int) -> Times:
    call = prepared.call
    begun = time.perf_counter()
    for inputs in itertools.islice(turns, num_calls):
        call(*inputs)
    return (time.perf_counter() - begun) / num_calls, None


def _on_device(prepared: Prepared, turns: "itertools.cycle[Inputs]", num_calls: int) -> Times:
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(_SLEEP_CYCLES)  # type: ignore[no-untyped-call]
    begun.record()
    host_s, _ = _on_host(prepared, turns, num_calls)
    ended.record()
    ended.synchronize()
    return host_s, begun.elapsed_time(ended) / 1e3 / num_calls


def result_error(prepared: Prepared, inputs: Inputs) -> float:
    """Largest difference from the result in float64, over that result's largest magnitude; infinite if not finite."""
    expected = prepared.reference(*inputs)  # first: some operations change their inputs
    found = prepared.compared(prepared.call(*inputs)).to("cpu", torch.float64)
    assert found.shape == expected.shape, f"the result is {tuple(found.shape)}, its reference {tuple(expected.shape)}"
    error, largest = float((found - expected).abs().max()), float(expected.abs().max())
    if not math.isfinite(error):
        return math.inf
    return error / largest if largest else error
