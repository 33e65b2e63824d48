"""Data-parallel cases: the timing pass on every rank of this machine, and a case of the record for each."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from charact.core.observer import Observer
from charact.core.timeline import Iteration, iteration_rows
from charact.execution.batches import Batches
from charact.execution.case import Case
from charact.execution.case_outcome import case_entry, one_line
from charact.execution.interrupt import Interrupt
from charact.execution.loop import Loop
from charact.execution.precision import float32_products
from charact.execution.sharding import Shard, shard_by_block
from charact.machine.core_use import CoreMeter
from charact.measure.case_loop import ending_of, run_each
from charact.measure.passes.flops import flop_pass
from charact.measure.passes.runner import PASSES
from charact.measure.passes.timing import StopRule, ended_by, spread_frac
from charact.measure.passes.token_counter import TokenCounter
from charact.measure.ranks.processes import largest_over_ranks, results_of_ranks
from charact.measure.ranks.rank_timer import RankTimer
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import CollectivesPass, FlopPass, TimingPass
from charact.record.schema import Rows
from charact.record.writer import RunWriter

_ONLY_TIMED = "on several ranks only timing and FLOP are taken: charact run --nproc has the others"
_REASONS = ("max_iterations", "max_seconds", "precision")
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


def run_rank_cases(cases: Sequence[Case], rule: StopRule, num_threads: int, writer: RunWriter, observer: Observer,
                   interrupt: Interrupt) -> None:
    """Time each case on its ranks, of `num_threads` each, count its FLOP, and write a case for each rank.

    Errors and signals: see `run_each`.
    """
    def run(case: Case) -> list[tuple[CaseEntry, dict[str, Rows]]]:
        timings: list[RankTiming] = []
        work: list[tuple[Rows, FlopPass]] = []

        def measure() -> None:
            observer.pass_started("timing")
            timings.extend(time_on_ranks(case, rule, num_threads))
            observer.pass_started("flop")
            work.append(rank_flop(case))

        ending = ending_of(measure, case.device, case.precision, interrupt, guarded=False)  # the ranks allocate
        if ending is not None:
            entry = case_entry(case)
            entry.update(**ending)
            for name in PASSES:
                entry.passes.end(name, "skipped", ending["reason"])
            return [(entry, {})]
        entries = []
        (flop_rows, flop_facts), = work
        for rank, timing in enumerate(timings):
            entry = case_entry(case)
            for name in PASSES:
                entry.passes.end(name, "skipped", _ONLY_TIMED)
            entry.passes["timing"], entry.passes["flop"] = timing.facts, flop_facts
            entry.num_parameters = timing.num_parameters
            if case.parallel:
                entry.passes["collectives"] = timing.collectives
                entry.update(case=f"{case.id}-rank{rank}", rank=rank)
            entries.append((entry, timing.tables | {"flop": flop_rows}))
        return entries

    run_each(cases, run, writer, observer, interrupt)


def rank_flop(case: Case) -> tuple[Rows, FlopPass]:
    """Return rows of the table `flop` of one rank, and facts of the FLOP pass; every rank has a batch of the same size.

    *Error*: what FSDP2 and the exchange of gradients compute is not counted.
    """
    alone = replace(case, parallel=None, num_ranks=1)
    try:
        on_cpu = replace(alone, device=torch.device("cpu"), num_workers=0)
        batch = next(Batches(on_cpu, on_cpu.dataset(), shuffle=False, whole=True).epoch())
        return flop_pass(alone, batch)
    except Exception as error:
        return [], FlopPass("failed", one_line(error, case.precision))


def time_on_ranks(case: Case, rule: StopRule, num_threads: int) -> list[RankTiming]:
    """Time a case in a new process for each of its ranks, each with a batch of the case's size; return one per rank.

    All ranks run the same number of iterations: every fifth iteration, outside of the timed ones, they agree whether
    the rule is met in any rank. All ranks read the same batches.

    Raises:
        RuntimeError: a rank failed; the message holds its error.
    """
    return results_of_ranks(partial(time_rank, case, rule), RankTiming, case.num_ranks, case.device.type, num_threads)


def time_rank(case: Case, rule: StopRule, device: torch.device) -> RankTiming:
    """Time a case in the process of one of its ranks, on the rank's device."""
    with float32_products(case.precision):
        shard: Shard | None = None
        wrap: Callable[[nn.Module], Any] | None = None
        if case.parallel == "fsdp2":
            from torch.distributed.device_mesh import init_device_mesh

            shard = partial(shard_by_block, mesh=init_device_mesh(device.type, (case.num_ranks,)))
        elif case.parallel == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            wrap = DistributedDataParallel
        loop = Loop(replace(case, device=device), shard=shard, wrap=wrap)
        try:
            return _timed(loop, rule, device)
        finally:
            loop.close()


def _timed(loop: Loop, rule: StopRule, device: torch.device) -> RankTiming:
    """Warm up and measure, as `timing_pass`."""
    begun, core_use = time.perf_counter(), CoreMeter()
    with RankTimer(device, loop.case.parallel) as timer:

        def iterate(number: int) -> tuple[list[Iteration], list[Rows]]:
            for _ in range(number):
                with timer.phases:
                    indices = tokens.indices(loop.iteration(timer.phases))
                tokens.add(indices)
            return timer.take()

        tokens = TokenCounter(loop.case)
        iterate(_NUM_WARMUP)
        timer.forget_lost()
        tokens = TokenCounter(loop.case)
        iterations: list[Iteration] = []
        collectives: list[Rows] = []
        reason = None
        while reason is None:
            measured, of_these = iterate(min(_TURN, rule.max_iterations - len(iterations)))
            iterations += measured
            collectives += of_these
            walls_s = [iteration.wall_s for iteration in iterations]
            own_reason = ended_by(walls_s, len(walls_s), rule, time.perf_counter() - begun)
            # The first reason of any rank to end is that of all.
            is_met = largest_over_ranks([float(own_reason == candidate) for candidate in _REASONS], device)
            reason = next((candidate for candidate, met in zip(_REASONS, is_met, strict=True) if met), None)
    tables = {"iterations": iteration_rows(iterations), "collectives": [
        row | {"iteration": number} for number, rows in enumerate(collectives) for row in rows]}
    return RankTiming(tables, TimingPass(
        "ok", num_warmup_iterations=_NUM_WARMUP, warmup_ended_by="number", num_iterations=len(iterations),
        ended_by=reason, precision_target_frac=rule.precision_target_frac, interval_frac=spread_frac(walls_s),
        median_s=median(walls_s), core_use=core_use.facts(), num_threads=torch.get_num_threads(),
        **tokens.facts(),
    ), timer.facts(), sum(parameter.numel() for parameter in loop.model.parameters()))
