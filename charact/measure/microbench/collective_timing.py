"""Timing of collectives between ranks, each in a process started here."""

import itertools
import json
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from charact.measure.microbench.call_timer import REPEAT_S, Times, by_clock, seconds
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
from charact.measure.ranks.processes import largest_over_ranks, process_group, run_ranks
from charact.ops import Prepared, parse_problem
from charact.ops.kinds.all_reduce import KIND

_RESULT = "result.json"


@dataclass(frozen=True)
class _Task:
    """Parameters of every rank."""

    folder: str
    text: str
    precision: str
    device_type: str
    num_ranks: int
    num_threads: int
    hot: bool
    rule: StopRule


def time_over_ranks(text: str, precision: str, device: torch.device, rule: StopRule, *, hot: bool,
                    ) -> tuple[OperationTiming, float]:
    """Time an all_reduce with the number of ranks in its text; also return its largest error over ranks.

    The ranks agree on everything that determines the number of repetitions. They start each repetition together; its
    time is that of the slowest rank. The timed values are zeros, which stay zeros in repeated sums and do not affect
    the time.

    *Error*: a barrier releases the ranks some microseconds apart, which is included in a repetition.

    Args:
        text: the problem, as in `all_reduce:1000000x2`.
        precision: of the values.
        device: its type determines where the ranks run; on CUDA each rank uses the device of its index.
        rule: stop rule, in repetitions.
        hot: whether every call uses the same inputs.

    Raises:
        RuntimeError: a rank failed; the message holds its error.
    """
    num_ranks = int(parse_problem(text).sizes["ranks"])
    num_threads = max(1, torch.get_num_threads() // num_ranks)
    with tempfile.TemporaryDirectory(prefix="charact-ranks-") as folder:
        task = _Task(folder, text, precision, device.type, num_ranks, num_threads, hot, rule)
        run_ranks(_run_rank, task, task.num_ranks)
        found = json.loads((Path(folder) / _RESULT).read_text(encoding="utf-8"))
    return OperationTiming(found["rows"], found["facts"]), found["max_error"]


def _run_rank(rank: int, task: _Task) -> None:
    with process_group(rank, task.num_ranks, task.folder, task.device_type, task.num_threads) as device:
        prepared = KIND.prepare(parse_problem(task.text), "forward", task.precision, device)
        max_error, = largest_over_ranks([result_error(prepared, prepared.inputs())], device)
        timing = _timed(prepared, device, task)
        if rank == 0:
            found = {"rows": timing.rows, "facts": timing.facts, "max_error": max_error}
            (Path(task.folder) / _RESULT).write_text(json.dumps(found), encoding="utf-8")


def _timed(prepared: Prepared, device: torch.device, task: _Task) -> OperationTiming:
    """Warm up and repeat like `time_direction`, with times that all ranks agree on."""
    rotated = rotated_inputs(prepared, device, hot=task.hot)
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
    warmup_ended_by, warmup_s = warm_up(lambda: [seconds_of(num_calls)], replace(task.rule, max_seconds=math.inf))
    rows: list[dict[str, Any]] = []
    call_s: list[float] = []
    spent_s = 0.0
    while (reason := ended_by(call_s, len(rows), task.rule, spent_s)) is None:
        times = slowest_repetition(prepared, turns, num_calls, device)
        call_s.append(seconds(times))
        rows.append({"repetition": len(rows), "num_calls": num_calls, **by_clock(times)})
        spent_s, = largest_over_ranks([time.perf_counter() - begun], device)
    facts = timing_facts(call_s, num_calls, reason, task.rule, rotated, device)
    facts.update(num_warmup_repetitions=len(warmup_s), warmup_ended_by=warmup_ended_by, num_ranks=task.num_ranks,
                 backend=dist.get_backend())
    return OperationTiming(rows, facts)


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
