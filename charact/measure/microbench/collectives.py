"""Timing of collectives between ranks of this machine, each in a process started here.

The ranks start a repetition together; its time is that of the slowest rank. Every rank times the same number of
repetitions. On CUDA each rank uses the device of its index.

*Error*: a barrier releases the ranks some microseconds apart, which is included in a repetition.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from charact.core.bus_bandwidth import bus_factor
from charact.core.output import ERR
from charact.core.statistics import median_interval
from charact.core.units import quantity
from charact.machine.ceilings_cache import CollectiveBandwidth
from charact.measure.microbench.call_timer import REPEAT_S, Times, by_clock, calls_per_repeat, seconds
from charact.measure.microbench.operation_timing import (
    Inputs,
    OperationTiming,
    repetition,
    result_error,
    rotated_inputs,
    timing_facts,
)
from charact.measure.passes.timing import StopRule, ended_by, warm_up
from charact.measure.passes.warm_device import warm_device
from charact.measure.ranks.processes import largest_over_ranks, results_of_ranks
from charact.ops import Prepared, parse_problem
from charact.ops.kinds.all_reduce import KIND
from charact.record.manifest_passes import Direction

SIZES_BYTES = tuple(4**exponent for exponent in range(5, 14))
"""1 KiB to 64 MiB."""
_NUM_REPEATS = 9
"""Least number of repeats of a size: the interval of their median excludes the two extremes."""
_SIZE_S, _OPERATION_S = 0.1, 3.0
"""Time in which a size is repeated further, and after which an operation's larger sizes are left out."""


def slowest_repetition(prepared: Prepared, turns: Iterator[Inputs], num_calls: int, device: torch.device) -> Times:
    """Return the time of a call in the slowest rank, averaged over `num_calls`; the ranks start together."""
    dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    host_s, device_s = repetition(prepared, turns, num_calls, device, queued=False)
    if device_s is None:
        return largest_over_ranks([host_s], device)[0], None
    host_s, device_s = largest_over_ranks([host_s, device_s], device)
    return host_s, device_s


@dataclass(frozen=True)
class _AllReduceTiming:
    """Timing of an all_reduce that all ranks agree on, and its largest error over ranks."""

    rows: list[dict[str, Any]]
    facts: Direction
    max_error: float


def time_over_ranks(text: str, precision: str, device: torch.device, rule: StopRule, *, hot: bool,
                    ) -> tuple[OperationTiming, float]:
    """Time an all_reduce with the number of ranks in its text; also return its largest error over ranks.

    The timed values are zeros, which stay zeros in repeated sums and do not affect the time.

    Raises:
        RuntimeError: a rank failed; the message holds its error.
    """
    work = partial(_timed_all_reduce, text, precision, rule, hot)
    num_ranks = int(parse_problem(text).sizes["ranks"])
    timing = results_of_ranks(work, _AllReduceTiming, num_ranks, device.type)[0]
    return OperationTiming(timing.rows, timing.facts), timing.max_error


def _timed_all_reduce(text: str, precision: str, rule: StopRule, hot: bool, device: torch.device) -> _AllReduceTiming:
    """Warm up and repeat in a rank like `time_direction`, with times that all ranks agree on."""
    prepared = KIND.prepare(parse_problem(text), "forward", precision, device)
    max_error, = largest_over_ranks([result_error(prepared, prepared.inputs())], device)
    rotated = rotated_inputs(prepared, device, hot=hot)
    for inputs in rotated:
        inputs[0].zero_()
    turns = itertools.cycle(rotated)

    def seconds_of(num_calls: int) -> float:
        return seconds(slowest_repetition(prepared, turns, num_calls, device))

    warm_device(device)  # each rank its own GPU; the barrier of the next call waits for the last one
    seconds_of(1)  # the first call opens connections
    begun = time.perf_counter()
    num_calls = math.ceil(REPEAT_S / min(seconds_of(1) for _ in range(3)))
    # Without a time limit, which ranks would reach at different times.
    warmup_ended_by, warmup_s = warm_up(lambda: [seconds_of(num_calls)], replace(rule, max_seconds=math.inf))
    rows: list[dict[str, Any]] = []
    call_s: list[float] = []
    spent_s = 0.0
    while (reason := ended_by(call_s, len(rows), rule, spent_s)) is None:
        times = slowest_repetition(prepared, turns, num_calls, device)
        call_s.append(seconds(times))
        rows.append({"repetition": len(rows), "num_calls": num_calls, **by_clock(times)})
        spent_s, = largest_over_ranks([time.perf_counter() - begun], device)
    facts = timing_facts(call_s, num_calls, reason, rule, rotated, device)
    facts.update(num_warmup_repetitions=len(warmup_s), warmup_ended_by=warmup_ended_by,
                 num_ranks=dist.get_world_size(), backend=dist.get_backend())
    return _AllReduceTiming(rows, facts, max_error)


def measure_collectives(num_ranks: int, device_type: str, sizes_bytes: Sequence[int] = SIZES_BYTES,
                        ) -> tuple[list[CollectiveBandwidth], dict[str, str]]:
    """Time each collective at each size, in some ten seconds. On a terminal, rank 0 shows the progress.

    A size is that of the larger of a rank's inputs and outputs. It is repeated 9 times or more, with as many calls in
    succession as take a millisecond, all of the same tensors.

    Returns:
        Bandwidth by operation and size, and the reason of each operation that the backend does not have.

    Raises:
        RuntimeError: a rank failed; the message holds its error.
    """
    return results_of_ranks(partial(_measured_collectives, sizes_bytes),
                            tuple[list[CollectiveBandwidth], dict[str, str]], num_ranks, device_type)[0]


def _measured_collectives(sizes_bytes: Sequence[int], device: torch.device
                          ) -> tuple[list[CollectiveBandwidth], dict[str, str]]:
    # PyTorch 2.13 renames the two.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    # Each collective, as a function of a whole tensor and of a rank's part of it.
    calls: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "all_reduce": lambda whole, part: dist.all_reduce(whole),
        "all_gather": lambda whole, part: gather(whole, part),
        "reduce_scatter": lambda whole, part: scatter(part, whole),
        "broadcast": lambda whole, part: dist.broadcast(whole, 0),
    }
    warm_device(device)
    num_ranks = dist.get_world_size()
    rows: list[CollectiveBandwidth] = []
    unavailable: dict[str, str] = {}
    for name, call in calls.items():
        begun = time.perf_counter()
        for num_bytes in sizes_bytes:
            _show(f"{name} of {quantity(num_bytes, 'B')} between {num_ranks} ranks")
            try:
                rows.append(_measured(name, call, num_bytes, num_ranks, device))
            except (RuntimeError, NotImplementedError) as error:
                if "not support" not in str(error) and not isinstance(error, NotImplementedError):
                    raise
                unavailable[name] = f"{dist.get_backend()} does not support it"
                break
            if largest_over_ranks([time.perf_counter() - begun], device)[0] > _OPERATION_S:
                break
    _show("")
    return rows, unavailable


def _measured(name: str, call: Callable[[Tensor, Tensor], Any], num_bytes: int, num_ranks: int,
              device: torch.device) -> CollectiveBandwidth:
    """Time a collective of about this size, in whole numbers of float32 for each rank; the values stay zeros."""
    part = torch.zeros(math.ceil(num_bytes / torch.float32.itemsize / num_ranks), device=device)
    whole = torch.zeros(num_ranks * len(part), device=device)
    prepared = Prepared(lambda: (whole, part), call, lambda *_: whole, lambda result: whole, 0.0)
    turns = itertools.repeat((whole, part))

    def seconds_of(num_calls: int) -> float:
        return seconds(slowest_repetition(prepared, turns, num_calls, device))

    num_calls = calls_per_repeat(min(seconds_of(1) for _ in range(3)), device)  # the first one opens connections
    call_s: list[float] = []
    begun = time.perf_counter()
    spent_s = 0.0
    while len(call_s) < _NUM_REPEATS or spent_s < _SIZE_S:
        call_s.append(seconds_of(num_calls))
        spent_s, = largest_over_ranks([time.perf_counter() - begun], device)
    return collective_ceiling(name, whole.nbytes, num_ranks, call_s)


def collective_ceiling(operation: str, num_bytes: int, num_ranks: int, call_s: Sequence[float]) -> CollectiveBandwidth:
    """Return the bandwidth of a collective from the times of a call in each repeat, 6 or more."""
    interval = median_interval(call_s)
    assert interval is not None
    moved_bytes = bus_factor(operation, num_ranks) * num_bytes
    return {"operation": operation, "bytes": num_bytes, "time_s": median(call_s),  # type: ignore[typeddict-item]
            "bus_bytes_per_s": moved_bytes / median(call_s),
            "low": moved_bytes / interval[1], "high": moved_bytes / interval[0]}


def _show(progress: str) -> None:
    """Replace the line of progress on a terminal, in rank 0."""
    if dist.get_rank() == 0 and ERR.isatty():
        ERR.write(f"\r\x1b[K{progress}")
        ERR.flush()
