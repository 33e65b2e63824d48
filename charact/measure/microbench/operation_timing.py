"""Timing of one direction of an operation on inputs that are cold in cache, and its error against float64."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from charact.execution.out_of_memory import free_host_bytes
from charact.machine.cache_sizes import cache_levels
from charact.measure.microbench.call_timer import Times, by_clock, calls_per_repeat, seconds, time_together
from charact.measure.passes.memory_pass import dense_parts
from charact.measure.passes.timing import StopRule, ended_by, spread_frac, warm_up
from charact.measure.passes.warm_device import warm_device
from charact.ops import Prepared
from charact.record.manifest_passes import Direction

Inputs = Sequence[torch.Tensor]

_CACHE_MULTIPLE = 2
"""Rotate inputs through this multiple of the last-level cache, so that none is still cached when it is reused."""
_MOST_INPUTS = 4096
_MEMORY_FRAC = 0.25
"""Maximum share of the free memory for all inputs."""


@dataclass(frozen=True)
class OperationTiming:
    """Result of timing: rows of the table `repetitions` without case and direction, and facts."""

    rows: list[dict[str, Any]]
    facts: Direction


def rotated_inputs(prepared: Prepared, device: torch.device, *, hot: bool) -> list[Inputs]:
    """Return sets of inputs to rotate through, or a single one if they should stay in the cache (`hot`).

    The number of sets is chosen so that a set has left the cache before its next use, limited by a quarter of the free
    memory.

    *Error*: for problems below a few kB, 4096 sets may still fit into the cache. The same holds for inputs that a call
    reads only in part, such as an embedding table.
    """
    first = prepared.inputs()
    if hot:
        return [first]
    num_bytes = max(1, sum(map(tensor_bytes, first)))
    wanted = 1 + math.ceil(_CACHE_MULTIPLE * cache_bytes(device) / num_bytes)
    free = free_host_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    number = min(wanted, _MOST_INPUTS, 1 + int(_MEMORY_FRAC * free / num_bytes))
    return [first, *(prepared.inputs() for _ in range(number - 1))]


def cache_bytes(device: torch.device) -> int:
    """Return the size of the last-level cache (bytes)."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return max((level.usable_bytes for level in cache_levels(torch.get_num_threads())), default=0)


def near_cache_bytes(device: torch.device) -> int:
    """Return the size of the threads' private caches before the last level (bytes); 0 if unknown, and on a GPU.

    A GPU's multiprocessors do not keep data between kernels.
    """
    levels = [] if device.type == "cuda" else cache_levels(torch.get_num_threads())
    return levels[-2].usable_bytes if len(levels) > 1 else 0


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's data; for a sparse tensor, values and indices."""
    return sum(part.nbytes for part in dense_parts(tensor))


def time_direction(prepared: Prepared, rotated: Sequence[Inputs], device: torch.device, rule: StopRule,
                   on_repetition: Callable[[int, float], None]) -> OperationTiming:
    """Warm up to the steady state, on a GPU also of its clock, then repeat until the rule is met.

    `on_repetition` is called between repetitions with their number and the median time of a call (s). A repetition has
    as many calls as fit into a millisecond, at least one. On a CPU the host's clock counts; on a GPU
    the time between events, with all calls queued before the first starts. Allocating the result is included.

    *Error*: as in the timing pass, clock frequency changes and other load affect all repetitions.
    """
    turns = itertools.cycle(rotated)
    num_unseen = warm_device(device, lambda: prepared.call(*next(turns)))
    begun = time.perf_counter()
    warmup_ended_by, warmup_s = warm_up(lambda: [seconds(repetition(prepared, turns, 1, device))], rule)
    num_calls = calls_per_repeat(min(warmup_s), device)
    rows: list[dict[str, Any]] = []
    call_s: list[float] = []
    while (reason := ended_by(call_s, len(rows), rule, time.perf_counter() - begun)) is None:
        times = repetition(prepared, turns, num_calls, device)
        call_s.append(seconds(times))
        rows.append({"repetition": len(rows), "num_calls": num_calls, **by_clock(times)})
        on_repetition(len(rows), median(call_s))
    facts = timing_facts(call_s, num_calls, reason, rule, rotated, device)
    facts.update(num_warmup_calls=num_unseen + len(warmup_s), warmup_ended_by=warmup_ended_by)
    return OperationTiming(rows, facts)


def repetition(prepared: Prepared, turns: Iterator[Inputs], num_calls: int, device: torch.device, *,
               queued: bool = True) -> Times:
    """Return the host's and the device's time of a call (s), the mean of `num_calls` calls on the next inputs.

    The time of `prepared.excluded`, measured in the same way, is subtracted.
    """
    def calls(call: Callable[..., Any]) -> None:
        for inputs in itertools.islice(turns, num_calls):
            call(*inputs)

    host_s, device_s = time_together(lambda: calls(prepared.call), num_calls, device, queued=queued)
    if (excluded := prepared.excluded) is None:
        return host_s, device_s
    other_host_s, other_device_s = time_together(lambda: calls(excluded), num_calls, device, queued=queued)
    return (max(0.0, host_s - other_host_s),
            None if device_s is None or other_device_s is None else max(0.0, device_s - other_device_s))


def timing_facts(call_s: Sequence[float], num_calls: int, ended_by: str, rule: StopRule, rotated: Sequence[Inputs],
                 device: torch.device) -> Direction:
    """Return the facts of a timing: the end of its repetitions, their precision, and its inputs."""
    return Direction(num_repetitions=len(call_s), num_calls=num_calls, ended_by=ended_by,
                     precision_target_frac=rule.precision_target_frac, interval_frac=spread_frac(list(call_s)),
                     num_inputs=len(rotated), inputs_bytes=sum(map(tensor_bytes, rotated[0])),
                     cache_bytes=cache_bytes(device))


def result_error(prepared: Prepared, inputs: Inputs) -> float:
    """Return the largest difference from the float64 result, relative to its largest magnitude; inf if not finite."""
    expected = prepared.reference(*inputs)  # first, since some operations change their inputs
    result = prepared.compared(prepared.call(*inputs)).to("cpu", torch.float64)
    assert result.shape == expected.shape, f"the result is {tuple(result.shape)}, its reference {tuple(expected.shape)}"
    error, largest = float((result - expected).abs().max()), float(expected.abs().max())
    if not math.isfinite(error):
        return math.inf
    return error / largest if largest else error
