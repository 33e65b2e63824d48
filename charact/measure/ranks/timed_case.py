"""A data-parallel case, timed on several ranks of this machine."""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from charact.core.timeline import Iteration, iteration_rows
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.execution.precision import float32_products
from charact.execution.sharding import Shard, shard_by_block
from charact.machine.core_use import CoreMeter
from charact.measure.passes.timing import StopRule, ended_by, spread_frac
from charact.measure.ranks.processes import largest_over_ranks, process_group, run_ranks
from charact.measure.ranks.rank_timer import RankTimer
from charact.record.manifest_passes import CollectivesPass, TimingPass
from charact.record.schema import Rows

_NUM_WARMUP = 5
_TURN = 5
"""Number of iterations after which the ranks agree whether to go on."""


@dataclass(frozen=True)
class RankTiming:
    """Timing pass of one rank: rows of the tables `iterations` and `collectives`; facts of the two passes."""

    tables: dict[str, Rows]
    facts: TimingPass
    collectives: CollectivesPass
    num_parameters: int


@dataclass(frozen=True)
class _Task:
    folder: str
    case: Case
    num_threads: int
    rule: StopRule


def time_on_ranks(case: Case, rule: StopRule, num_threads: int) -> list[RankTiming]:
    """Time a case in a new process for each of its ranks, each with a batch of the case's size; return one per rank.

    All ranks run the same number of iterations: every fifth iteration, outside of the timed ones, they agree whether
    the rule is met in any rank. All ranks read the same batches.

    Args:
        case: the case; its device determines where the ranks run.
        rule: stop rule.
        num_threads: threads inside an operator, of each rank.

    Raises:
        RuntimeError: a rank failed; the message holds its error.
    """
    with tempfile.TemporaryDirectory(prefix="charact-ranks-") as folder:
        run_ranks(_run_rank, _Task(folder, case, num_threads, rule), case.num_ranks)
        return [RankTiming(**json.loads(_result(folder, rank).read_text(encoding="utf-8")))
                for rank in range(case.num_ranks)]


def _result(folder: str, rank: int) -> Path:
    return Path(folder) / f"rank-{rank}.json"


def _run_rank(rank: int, task: _Task) -> None:
    case = task.case
    with process_group(rank, case.num_ranks, task.folder, case.device.type, task.num_threads) as device, \
            float32_products(case.precision):
        shard, wrap = _parallel(case, device)
        loop = Loop(replace(case, device=device), shard=shard, wrap=wrap)
        num_parameters = sum(parameter.numel() for parameter in loop.model.parameters())
        try:
            timing = _timed(loop, task.rule, device, num_parameters)
        finally:
            loop.close()
    _result(task.folder, rank).write_text(json.dumps(asdict(timing)), encoding="utf-8")


def _parallel(case: Case, device: torch.device) -> tuple[Shard | None, Callable[[nn.Module], Any] | None]:
    """Return what shards and what wraps the model for the way in which the ranks train together."""
    if case.parallel == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh

        return partial(shard_by_block, mesh=init_device_mesh(device.type, (case.num_ranks,))), None
    if case.parallel == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return None, DistributedDataParallel
    return None, None


def _timed(loop: Loop, rule: StopRule, device: torch.device, num_parameters: int) -> RankTiming:
    """Warm up and measure, as `timing_pass`."""
    begun, core_use = time.perf_counter(), CoreMeter()
    with RankTimer(device, loop.case.parallel) as timer:

        def iterate(number: int) -> tuple[list[Iteration], list[Rows]]:
            for _ in range(number):
                with timer.phases:
                    loop.iteration(timer.phases)
            return timer.take()

        iterate(_NUM_WARMUP)
        timer.forget_lost()
        iterations: list[Iteration] = []
        collectives: list[Rows] = []
        reason = None
        while reason is None:
            measured, of_these = iterate(min(_TURN, rule.max_iterations - len(iterations)))
            iterations += measured
            collectives += of_these
            walls_s = [iteration.wall_s for iteration in iterations]
            reason = _agreed(ended_by(walls_s, len(walls_s), rule, time.perf_counter() - begun), device)
    tables = {"iterations": iteration_rows(iterations), "collectives": [
        row | {"iteration": number} for number, rows in enumerate(collectives) for row in rows]}
    return RankTiming(tables, TimingPass(
        "ok", num_warmup_iterations=_NUM_WARMUP, warmup_ended_by="number", num_iterations=len(iterations),
        ended_by=reason, precision_target_frac=rule.precision_target_frac, interval_frac=spread_frac(walls_s),
        median_s=median(walls_s), core_use=core_use.facts(), num_threads=torch.get_num_threads(),
    ), timer.facts(), num_parameters)


_REASONS = ("max_iterations", "max_seconds", "precision")


def _agreed(reason: str | None, device: torch.device) -> str | None:
    """Return the first reason of any rank to end, the same in all ranks; None if all go on."""
    found = largest_over_ranks([float(reason == one) for one in _REASONS], device)
    return next((one for one, is_met in zip(_REASONS, found, strict=True) if is_met), None)
