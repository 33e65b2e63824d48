"""Rounds over all bricks of a run: timing, failures and crashes, the stop rule, and the rows of the table `bricks`."""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
import torch

from charact.bricks.aten import BrickFunction, runnable
from charact.bricks.suite.brick import Brick, literals
from charact.bricks.suite.captured_graph import ITEM_BYTES
from charact.bricks.timing.inputs import Arguments, InputPool
from charact.bricks.timing.work import GradientSumWork, SequenceWork, UpdateWork, Visit, Work, backward_start
from charact.bricks.timing.worker import DESCRIBING, TIMING, Crashes
from charact.core.bounded_reading import limit_bytes
from charact.core.errors import UserError
from charact.execution.case_outcome import failure, size
from charact.execution.memory_limit import growth_limit
from charact.measure.microbench.call_timer import by_clock, clock_for, queued, seconds
from charact.measure.passes.flops import work_of
from charact.measure.passes.timing import MIN_ITERATIONS, StopRule
from charact.record.reader import Rows

MOST_BRICK_BYTES = 16 * 2**30
"""Default memory limit of a brick (bytes)."""


def most_bytes() -> int:
    """Return the memory limit of a brick (bytes), applied to its inputs and to its further allocations."""
    return limit_bytes(MOST_BRICK_BYTES)


def _check_size(brick: Brick) -> None:
    num_bytes = sum(each.storage_elements * ITEM_BYTES[each.dtype] for each in brick.inputs)
    if num_bytes > (limit := most_bytes()):
        raise UserError(f"its inputs take {size(num_bytes)}, the limit is {size(limit)}: raise it with --max-bytes if "
                        "you trust the suite")


def described(brick: Brick) -> dict[str, Any]:
    """Return the columns of the table `bricks` that are known before the brick runs; lists are JSON."""
    return {
        "brick": brick.id, "kind": brick.kind, "num_layers": brick.num_layers,
        "layer_types": json.dumps(brick.layer_types),
        "input_shapes": json.dumps([list(each.shape) for each in brick.inputs]),
        "literals": json.dumps(literals(brick)), "weights_bytes": float(brick.weights_bytes),
    }


def counted_work(brick: Brick, call: BrickFunction, pool: InputPool, *, training: bool
                 ) -> tuple[dict[str, float | None], set[str]]:
    """Return FLOP and bytes of one call, in training with its backward pass, and operators without a FLOP formula.

    They are counted on real tensors, which also works for operators that depend on values.
    """
    training = training and brick.kind == "sequence"
    arguments = Arguments(brick, pool, training=training)
    inputs = arguments.call_with(arguments.weights() | arguments.others())
    outputs: list[torch.Tensor] = []
    flop, num_bytes, uncounted = work_of(lambda: outputs.extend(call(inputs)))
    carriers = [output for output in outputs if training and output.requires_grad]
    if not carriers:
        return {"flop": flop, "bytes": num_bytes}, set(uncounted)
    gradients = [torch.ones_like(output) for output in carriers]
    backward, backward_bytes, more = work_of(lambda: torch.autograd.backward(carriers, gradients))
    counted = [each for each in (flop, backward) if each is not None]
    return {"flop": sum(counted) if counted else None, "bytes": num_bytes + backward_bytes}, {*uncounted, *more}


_NUM_RESAMPLES = 50
_STANDARD_ERRORS = 1.96
_GOLDEN_SHARE = (5**0.5 - 1) / 2
"""Golden ratio: the fractional parts of its multiples are spread evenly."""

Item = TypeVar("Item")


def rotated(items: list[Item], number: int) -> list[Item]:
    """Return the items rotated by round number, so that a periodic slowdown hits different bricks each round."""
    first = int(number * _GOLDEN_SHARE % 1 * len(items))
    return items[first:] + items[:first]


class Rounds:
    """Times and work of each brick, measured in rounds.

    Args:
        bricks: in the order of visits.
        training: whether sequences are differentiated.
        device: device to run on.
        before: rows of the tables `bricks` and `brick_times` from complete rounds of an earlier process.
        crashes: bricks that ended an earlier process; it also records the running brick.
    """

    def __init__(self, bricks: Iterable[Brick], device: torch.device, *, training: bool, before: dict[str, Rows],
                 crashes: Crashes | None = None) -> None:
        self._crashes = crashes or Crashes()
        self.bricks = {brick.id: brick for brick in bricks}
        self._training, self._device = training, device
        self._clock = clock_for(device)
        self._calls: dict[str, BrickFunction] = {}
        self._works: dict[str, Work] = {}
        self.rows: dict[str, dict[str, Any]] = {
            brick.id: {**described(brick), "status": "running", "reason": None, "num_rounds": 0, "set_up_s": 0.0}
            for brick in self.bricks.values()}
        self.times: Rows = []
        self.timed_s = 0.0
        """Total time of all timed calls (seconds)."""
        self._seconds: dict[str, list[float]] = {brick: [] for brick in self.bricks}
        self.uncounted: set[str] = set()
        """Heavy operators without a FLOP formula."""
        self.undescribed: dict[str, str] = {}
        """Reasons why bricks have times but no work, by brick."""
        self._resume(before)
        for crashed, ending in self._crashes.endings(TIMING).items():
            if crashed in self.rows:
                self._fail(crashed, ending)
        for brick in self._running():
            self._try(brick.id, partial(_check_size, brick))
        self._pool = InputPool(self._running(), device)
        for brick in self._running():
            self._try(brick.id, partial(self._prepare, brick))
        self._unlimited = set[str]()
        """Bricks that had a visit under the memory limit; later visits have no limit."""
        starts = [work.start for work in self._works.values() if isinstance(work, UpdateWork)]
        self.facts: dict[str, Any] = {
            "clock_s": self._clock.own_s,
            "backward_start_s": by_clock(backward_start(device, self._clock)) if training else None,
            "step_start_s": by_clock(max(starts, key=seconds)) if starts else None,
        }

    @property
    def num_rounds(self) -> int:
        """Return the number of complete rounds."""
        return int(max(row["num_rounds"] for row in self.rows.values()))

    @property
    def left(self) -> list[str]:
        """Return the bricks that have not failed."""
        return list(self._works)

    def round(self, between: Callable[[], object] = lambda: None,
              interruptible: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        """Visit each brick once, starting at a different brick in each round.

        An interrupted round records only failures.

        Args:
            between: called before each visit; its time is not counted.
            interruptible: context of the visits. The complete round is recorded outside of it.
        """
        number, found = self.num_rounds, {}
        with interruptible():
            for brick in rotated(self.left, number):
                between()
                found[brick] = self._visit(brick)
        for brick, times in found.items():
            if times:
                self._take([
                    {"brick": brick, "phase": phase, "round": number, "call": call,
                     "num_calls": self._works[brick].num_calls, "host_s": host_s, "device_s": device_s}
                    for call, phases in enumerate(times) for phase, (host_s, device_s) in phases.items()])
                self.rows[brick]["num_rounds"] = number + 1

    def interval_frac(self) -> float | None:
        """Return the relative half-width of the 95 % interval of the sum of medians, or None below 6 rounds.

        The bootstrap resamples whole rounds, the same for all bricks, so that slow rounds widen the interval.
        """
        matrix = np.array([self._seconds[brick] for brick in self.left])
        if matrix.size == 0 or matrix.shape[1] < MIN_ITERATIONS:
            return None
        generator = np.random.default_rng(0)
        sums = [np.median(matrix[:, generator.integers(0, matrix.shape[1], matrix.shape[1])], axis=1).sum()
                for _ in range(_NUM_RESAMPLES)]
        return float(_STANDARD_ERRORS * np.std(sums, ddof=1) / np.median(matrix, axis=1).sum())

    def ended_by(self, rule: StopRule) -> str | None:
        """Return which limit of the rule was reached, `no brick left` if all failed, or None to continue."""
        if not self._works:
            return "no brick left"
        if self.num_rounds >= rule.max_iterations:
            return "max_rounds"
        interval = self.interval_frac()
        if interval is None:
            return None
        if interval <= rule.precision_target_frac:
            return "precision"
        return "max_seconds" if self.timed_s + self.set_up_s >= rule.max_seconds else None

    @property
    def set_up_s(self) -> float:
        """Return the untimed part of the bricks' visits (seconds)."""
        return float(sum(row["set_up_s"] for row in self.rows.values()))

    def describe(self) -> None:
        """Count FLOP and bytes of each brick; if that fails they are null, and the brick keeps its times."""
        ended = self._crashes.endings(DESCRIBING)
        for brick in self.left:
            if brick in ended:
                self.undescribed[brick] = ended[brick]["reason"]
                continue
            try:
                if brick in self._calls:  # optimizer steps are not counted
                    with self._crashes.running(brick, DESCRIBING):
                        work, uncounted = counted_work(self.bricks[brick], self._calls[brick], self._pool,
                                                       training=self._training)
                    self.rows[brick] |= work
                    self.uncounted |= uncounted
            except Exception as error:
                self.undescribed[brick] = failure(error)["reason"]
            self._pool.end_visit()
        for brick in self.left:
            self.rows[brick]["status"] = "ok"

    def _resume(self, before: dict[str, Rows]) -> None:
        """Continue from rows of an earlier process; failed bricks are not tried again."""
        for row in before.get("bricks", []):
            failed = row["status"] in ("oom", "error")
            self.rows[row["brick"]] |= {
                "num_rounds": row["num_rounds"], "set_up_s": row["set_up_s"], "reason": row["reason"],
                "status": row["status"] if failed else "running"}
        self._take(before.get("brick_times", []))

    def _take(self, rows: Rows) -> None:
        """Add the times of whole rounds."""
        self.times += rows
        by_round: dict[tuple[str, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for row in rows:
            time_s = seconds((row["host_s"], row["device_s"]))
            self.timed_s += row["num_calls"] * time_s
            by_round[row["brick"], row["round"]][row["call"]] += time_s
        for (brick, _), calls in by_round.items():
            self._seconds[brick].append(fmean(calls.values()))

    def _running(self) -> list[Brick]:
        return [brick for brick in self.bricks.values() if self.rows[brick.id]["status"] == "running"]

    def _prepare(self, brick: Brick) -> None:
        """Create the brick's function and work."""
        if brick.kind == "update":
            self._works[brick.id] = UpdateWork(brick, self._pool, self._clock)
            return
        call = self._calls[brick.id] = runnable(brick, str(self._device))
        self._works[brick.id] = (
            GradientSumWork(brick, call, self._pool, self._clock) if brick.kind == "gradient_sum" else
            SequenceWork(brick, call, self._pool, self._clock, training=self._training))

    def _visit(self, brick: str) -> Visit:
        """Return the times by phase of each call; an empty list if the brick failed."""
        times: Visit = []
        begun, work = time.perf_counter(), self._works[brick]
        first = brick not in self._unlimited
        limit = growth_limit(self._device, most_bytes() + self._pool.weight_pool.num_bytes) if first else nullcontext()
        with limit:
            self._try(brick, lambda: times.extend(queued(self._clock, work.visit)))
        self._unlimited.add(brick)
        self._pool.end_visit()
        if times:
            spent_s = sum(host_s for call in times for host_s, _ in call.values()) * work.num_calls
            self.rows[brick]["set_up_s"] += max(0.0, time.perf_counter() - begun - spent_s)
        return times

    def _try(self, brick: str, work: Callable[[], object]) -> None:
        """Run `work` for a brick; on an error, record the brick as failed."""
        try:
            with self._crashes.running(brick, TIMING):
                work()
        except Exception as error:
            ending = {"status": "error", "reason": str(error)} if isinstance(error, UserError) else failure(error)
            if ending["status"] == "oom":
                ending["reason"] += (f" (the limit of a brick is {size(most_bytes())}, or the free memory if less: see "
                                     "--max-bytes)")
            self._fail(brick, ending)

    def _fail(self, brick: str, ending: dict[str, Any]) -> None:
        self.rows[brick] |= {"status": ending["status"], "reason": ending["reason"], "num_rounds": 0}
        self._works.pop(brick, None)
        self.times = [row for row in self.times if row["brick"] != brick]
