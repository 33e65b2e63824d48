"""Ceilings of collectives: bandwidth between ranks of this machine, by operation and size."""

import itertools
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from charact.core.bus_bandwidth import bus_factor
from charact.core.output import ERR
from charact.core.statistics import median_interval
from charact.core.units import quantity
from charact.machine.collective_ceilings import CollectiveCeiling
from charact.measure.microbench.call_timer import calls_per_repeat, seconds
from charact.measure.microbench.collective_timing import slowest_repetition
from charact.measure.passes.warm_device import warm_device
from charact.measure.ranks.processes import largest_over_ranks, process_group, run_ranks
from charact.ops import Prepared

SIZES_BYTES = tuple(4**exponent for exponent in range(5, 14))
"""1 KiB to 64 MiB."""
_NUM_REPEATS = 9
"""Least number of repeats of a size: the interval of their median excludes the two extremes."""
_SIZE_S, _OPERATION_S = 0.1, 3.0
"""Time in which a size is repeated further, and after which an operation's larger sizes are left out."""
_RESULT = "collectives.json"


@dataclass(frozen=True)
class _Task:
    """Parameters of every rank."""

    folder: str
    num_ranks: int
    device_type: str
    num_threads: int
    sizes_bytes: Sequence[int]


def measure_collectives(num_ranks: int, device_type: str, sizes_bytes: Sequence[int] = SIZES_BYTES,
                        ) -> tuple[list[CollectiveCeiling], dict[str, str]]:
    """Time each collective at each size between ranks of this machine, in a new process each. Takes some ten seconds.

    A size is repeated 9 times or more, with as many calls in succession as take a millisecond, all of the same
    tensors. The ranks start a repeat together; its time is that of the slowest rank. On a terminal, rank 0 shows the
    progress.

    *Error*: a barrier releases the ranks some microseconds apart, which is included in a repeat.

    Args:
        num_ranks: number of ranks, 2 or more.
        device_type: cpu for gloo; cuda for NCCL, where each rank uses the device of its index.
        sizes_bytes: the larger of a rank's inputs and outputs.

    Returns:
        Bandwidth by operation and size, and the reason of each operation that the backend does not have.

    Raises:
        RuntimeError: a rank failed; the message holds its error.
    """
    num_threads = max(1, torch.get_num_threads() // num_ranks)
    with tempfile.TemporaryDirectory(prefix="charact-ranks-") as folder:
        run_ranks(_run_rank, _Task(folder, num_ranks, device_type, num_threads, sizes_bytes), num_ranks)
        found = json.loads((Path(folder) / _RESULT).read_text(encoding="utf-8"))
    return found["rows"], found["unavailable"]


def collective_ceiling(operation: str, num_bytes: int, num_ranks: int, call_s: Sequence[float]) -> CollectiveCeiling:
    """Return the bandwidth of a collective from the times of a call in each repeat, 6 or more."""
    interval = median_interval(call_s)
    assert interval is not None
    moved_bytes = bus_factor(operation, num_ranks) * num_bytes
    return {"operation": operation, "bytes": num_bytes, "time_s": median(call_s),  # type: ignore[typeddict-item]
            "bus_bytes_per_s": moved_bytes / median(call_s),
            "low": moved_bytes / interval[1], "high": moved_bytes / interval[0]}


def _operations() -> dict[str, Callable[[Tensor, Tensor], Any]]:
    """Return each collective as a function of a whole tensor and of a rank's part of it."""
    # PyTorch 2.13 renames the two.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return {
        "all_reduce": lambda whole, part: dist.all_reduce(whole),
        "all_gather": lambda whole, part: gather(whole, part),
        "reduce_scatter": lambda whole, part: scatter(part, whole),
        "broadcast": lambda whole, part: dist.broadcast(whole, 0),
    }


def _run_rank(rank: int, task: _Task) -> None:
    with process_group(rank, task.num_ranks, task.folder, task.device_type, task.num_threads) as device:
        warm_device(device)
        rows: list[CollectiveCeiling] = []
        unavailable: dict[str, str] = {}
        for name, call in _operations().items():
            begun = time.perf_counter()
            for num_bytes in task.sizes_bytes:
                if rank == 0:
                    _show(f"{name} of {quantity(num_bytes, 'B')} between {task.num_ranks} ranks")
                try:
                    rows.append(_measured(name, call, num_bytes, task.num_ranks, device))
                except (RuntimeError, NotImplementedError) as error:
                    if "not support" not in str(error) and not isinstance(error, NotImplementedError):
                        raise
                    unavailable[name] = f"{dist.get_backend()} does not support it"
                    break
                if largest_over_ranks([time.perf_counter() - begun], device)[0] > _OPERATION_S:
                    break
        if rank == 0:
            _show("")
            (Path(task.folder) / _RESULT).write_text(json.dumps({"rows": rows, "unavailable": unavailable}),
                                                     encoding="utf-8")


def _measured(name: str, call: Callable[[Tensor, Tensor], Any], num_bytes: int, num_ranks: int,
              device: torch.device) -> CollectiveCeiling:
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


def _show(progress: str) -> None:
    """Replace the line of progress on a terminal."""
    if ERR.isatty():
        ERR.write(f"\r\x1b[K{progress}")
        ERR.flush()
