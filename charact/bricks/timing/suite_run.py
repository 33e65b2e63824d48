"""Running a suite of bricks into a record, which is flushed between rounds and can be resumed after a kill."""

import contextlib
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from charact.bricks.aten import runnable
from charact.bricks.suite.brick import Brick, runs_as
from charact.bricks.suite.composition import load_compositions
from charact.bricks.suite.prediction import chosen_to_time, sizes_of
from charact.bricks.suite.suite import Suite, load_suite
from charact.bricks.timing.rounds import Rounds, described
from charact.bricks.timing.worker import TIMING, Crashes, Report, supervise
from charact.core.bounded_reading import limited_to
from charact.core.errors import UserError
from charact.core.observer import Observer
from charact.execution.case_outcome import failure
from charact.execution.interrupt import Interrupt
from charact.execution.memory_limit import keep_freed_memory, release_memory, restore_allocator
from charact.execution.out_of_memory import host_memory_guard
from charact.execution.precision import float32_products, unsupported_reason
from charact.machine.facts import device_name
from charact.measure.passes.flops import work_of
from charact.measure.passes.timing import StopRule
from charact.measure.passes.warm_device import warm_device
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import BricksPass, Passes
from charact.record.reader import Rows, load_run
from charact.record.redaction import expanded_path
from charact.record.schema import LEFT_OUT, UNFINISHED
from charact.record.writer import RunWriter

_MOST_KERNELS = 1_000_000
_MOST_THREADS = 4096


@contextlib.contextmanager
def brick_settings(precision: str) -> Iterator[None]:
    """Apply the settings of brick timing: freed memory stays in the process, and the garbage collector is frozen.

    The C library (glibc) does not return freed memory. Otherwise each large tensor would get new pages, and the time
    to zero them would be measured (VGG-16: 728,920 page faults, and 9 with this setting). Objects that exist
    now are exempt from garbage collection.

    oneDNN caches all its kernels instead of the last 1024: a suite has more than a model, and creating one takes about
    400 microseconds. oneDNN reads this setting on first use, so it has no effect in a process that has already used
    oneDNN, for example to capture models. The number of threads and the treatment of denormals are not changed.

    Args:
        precision: as in `schema.PRECISIONS`; it determines whether float32 products may be rounded to TF32.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_MOST_KERNELS))
    keep_freed_memory()
    gc.collect()
    gc.freeze()
    try:
        with float32_products(precision):
            yield
    finally:
        gc.unfreeze()
        restore_allocator()


def set_recorded_threads(number: object) -> None:
    """Set PyTorch's number of threads to that of a record, which may be untrusted.

    Raises:
        UserError: it is no whole number from 1 to the most that a machine could have.
    """
    if type(number) is not int or not 1 <= number <= _MOST_THREADS:
        raise UserError(f"the run was made with {ascii(number)[:40]} threads, which no machine has: run the "
                        "suite again")
    torch.set_num_threads(number)


_FLUSH_EVERY_S = 2.0
_FLUSH_FRAC = 0.05
"""Maximum share of the time spent on flushing."""


@dataclass
class SuiteRun:
    """One case: the bricks of a suite in a mode and a precision, timed into a record.

    Times are flushed to the record every few seconds and at the end. An unfinished case of the record is resumed after
    its last complete round. A brick that fails is recorded with its reason, and the run continues. A signal ends the
    run after the last complete round and is in `interrupt.signal`.
    """

    suite: Suite
    mode: str
    precision: str
    device: torch.device
    rule: StopRule
    """Its iterations are rounds."""
    writer: RunWriter
    observer: Observer
    """Receives progress; its iterations are rounds."""
    interrupt: Interrupt
    batch_sizes: Sequence[int] | None = None
    """Of the bricks' models; by default all."""
    precisions: Sequence[str] | None = None
    """Of the bricks' models; by default all that run in `precision`."""
    share_frac: float = 1.0
    """Share of the bricks to time, in inference; the times of the others can be predicted."""
    models: Sequence[Mapping[str, int]] = ()
    """Number of uses of each brick, for each known model, to choose the bricks to time."""
    crashes: Crashes = field(default_factory=Crashes)
    """Bricks that ended earlier processes of this run."""

    def __post_init__(self) -> None:
        if reason := unsupported_reason(self.precision, self.device):
            raise UserError(reason)
        suite = self.suite
        self._bricks = chosen_bricks(suite, self.mode, self.precision, self.batch_sizes, self.precisions)
        self._left_out: Rows = []
        self.case = f"bricks-{suite.name}-g{suite.g}-{self.mode}-{self.precision}-{str(self.device).replace(':', '')}"
        self._facts = BricksPass(
            "ok", method="contextual", suite=suite.name, suite_digest=suite.digest, g=suite.g, cut_method=suite.method,
            num_bricks=len(self._bricks), num_rounds=0, precision_target_frac=self.rule.precision_target_frac,
            timed_s=0.0, set_up_s=0.0)
        self._entry = CaseEntry(
            self.case, "running", workload="bricks", variant=suite.name, mode=self.mode, precision=self.precision,
            device=str(self.device), device_name=device_name(self.device), data="synthetic",
            passes=Passes(bricks=self._facts))
        self._rounds: Rounds | None = None
        self._flushed, self._flushing_s = time.perf_counter(), 0.0

    def run(self, number: int = 1, total: int = 1) -> None:
        """Time the bricks of this case, the `number`-th of `total` of the run."""
        before = self.writer.entry(self.case)
        if before is not None and before.status not in UNFINISHED:
            return
        self.observer.case_started(self.case, number, total)
        rows = {} if before is None else self._rows_before(before)
        gradients = torch.enable_grad() if self.mode == "train" else torch.inference_mode()
        try:
            with host_memory_guard(self.device), brick_settings(self.precision), gradients:
                rounds = self._time(rows)
            self._entry.status = "ok"
            if not rounds.left:
                first = next(iter(rounds.rows.values()))
                self._end(status=first["status"], reason=f"every brick failed; the first: {first['reason']}")
        except UserError:
            raise
        except KeyboardInterrupt:
            self._end(**self.interrupt.ending())
        except Exception as error:
            self._end(**failure(error, self.precision))
        self._flush()
        self._rounds = None
        release_memory(self.device)
        self.observer.case_ended(self._entry.status, self._entry.reason)

    def _time(self, before: dict[str, Rows]) -> Rounds:
        begun = time.perf_counter()
        with self.interrupt.allowed():
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)  # events are recorded on the current one
            if rows := before.get("bricks"):  # a resumed run keeps its choice, since the known models may have changed
                self._left_out = [row for row in rows if row["status"] == LEFT_OUT]
            elif self.share_frac < 1:
                self._left_out = left_out(self._bricks, self.share_frac, self.models, self.crashes)
            names = {row["brick"] for row in self._left_out}
            self._rounds = rounds = Rounds(
                [brick for brick in self._bricks if brick.id not in names], self.device,
                training=self.mode == "train", crashes=self.crashes,
                before={table: [row for row in rows if row["brick"] not in names] for table, rows in before.items()})
        self._facts.update(**rounds.facts, preparing_s=self._facts.preparing_s + time.perf_counter() - begun)
        self.observer.pass_started("bricks")
        with self.interrupt.allowed():
            warm_device(self.device)
        while (reason := rounds.ended_by(self.rule)) is None:
            begun = time.perf_counter()
            rounds.round(interruptible=self.interrupt.allowed)
            self.observer.iteration(rounds.num_rounds, time.perf_counter() - begun)
            if time.perf_counter() - self._flushed >= max(_FLUSH_EVERY_S, self._flushing_s / _FLUSH_FRAC):
                self._flush()
        self._facts.update(ended_by=reason, interval_frac=rounds.interval_frac())
        if self.crashes.note is not None:
            self._flush()  # a brick may end the process while its work is counted
        begun = time.perf_counter()
        self.observer.pass_started("work")
        with self.interrupt.allowed():
            rounds.describe()
        self._facts.update(describing_s=time.perf_counter() - begun, uncounted=sorted(rounds.uncounted),
                           undescribed=rounds.undescribed)
        return rounds

    def _end(self, **ending: Any) -> None:
        self._entry.update(**ending)
        self._facts.update(status="failed", reason=ending["reason"])

    def _flush(self) -> None:
        begun = time.perf_counter()
        tables: dict[str, Rows] = {}
        if self._rounds is not None:
            rows = list(self._rounds.rows.values())
            self._facts.update(num_rounds=self._rounds.num_rounds, num_left_out=len(self._left_out),
                               num_failed=sum(row["reason"] is not None for row in rows),
                               timed_s=self._rounds.timed_s, set_up_s=self._rounds.set_up_s)
            tables = {"bricks": [*rows, *self._left_out], "brick_times": self._rounds.times}
        self.writer.add_case(self._entry, tables)
        self._flushed = time.perf_counter()
        self._flushing_s = self._flushed - begun

    def _rows_before(self, entry: CaseEntry) -> dict[str, Rows]:
        """Return the record's rows of complete rounds."""
        facts = entry.passes.bricks
        if facts.suite_digest != self._facts.suite_digest:
            raise UserError(f"the suite {self._facts.suite} is no longer what {self.case} was begun with: start a "
                            "new run")
        facts.update(status="ok", reason=None, num_resumed=facts.num_resumed + (0 if self.crashes.signals else 1))
        self._facts = self._entry.passes["bricks"] = facts
        run = load_run(self.writer.directory, partial=True)
        tables: dict[str, Rows] = {}
        for name in ("bricks", "brick_times"):
            rows = run.table(name)
            rows = rows[rows["case"] == self.case].drop(columns="case")
            records = rows.astype(object).where(rows.notna(), None).to_dict("records")
            tables[name] = [{str(column): value for column, value in record.items()} for record in records]
        return tables


def chosen_bricks(suite: Suite, mode: str, precision: str, batch_sizes: Sequence[int] | None,
                  precisions: Sequence[str] | None = None) -> list[Brick]:
    """Return the matching bricks, sorted by identifier.

    Bricks of autocast precisions and of pure-bf16 carry their own dtypes and count as fp32. Bricks of models without a
    batch size match every batch size.
    """
    names = [name for name, entry in sorted(suite.bricks.items())
             if entry["mode"] == mode and entry["precision"] == runs_as(precision)
             and (batch_sizes is None or not entry["batch_sizes"] or set(batch_sizes) & set(entry["batch_sizes"]))
             and (precisions is None or set(precisions) & set(entry["precisions"]))]
    if not names:
        raise UserError(f"the suite {suite.name} has no bricks for {mode} in {precision} with these batch sizes and "
                        "precisions: choose other options, or generate them")
    return [suite.brick(name) for name in names]


def left_out(bricks: Sequence[Brick], share_frac: float, models: Iterable[Mapping[str, int]],
             crashes: Crashes | None = None) -> Rows:
    """Return rows of the bricks that `chosen_to_time` does not choose.

    FLOP and bytes are counted on fake tensors. A brick for which this fails, since an operator needs values, is timed.
    """
    crashes = crashes or Crashes()
    rows: dict[str, dict[str, Any]] = {}
    for brick in bricks:
        if brick.id in crashes.endings(TIMING):
            continue
        with crashes.running(brick.id, TIMING), contextlib.suppress(Exception), FakeTensorMode():
            inputs = [torch.empty_strided(each.shape, each.stride, dtype=getattr(torch, each.dtype))
                      for each in brick.inputs]
            call = runnable(brick, "cpu")
            flop, num_bytes, _ = work_of(partial(call, inputs))
            rows[brick.id] = described(brick) | {"flop": flop, "bytes": num_bytes}
    chosen = chosen_to_time({brick: sizes_of(row) for brick, row in rows.items()}, models, share_frac)
    ending = {"status": LEFT_OUT, "reason": "not timed: its time is predicted from similar bricks", "num_rounds": 0,
              "set_up_s": 0.0}
    return [row | ending for brick, row in rows.items() if brick not in chosen]


def run_cases(directory: Path, lock: int, report: Report, interrupt: Interrupt, crashes: Crashes) -> None:
    """Run the cases that a record's options name, as the work of `supervise`."""
    writer = RunWriter.reopen(directory, lock)
    options = writer.manifest["options"]
    with limited_to(options.get("max_bytes")):  # records of earlier versions lack it
        suite = load_suite(expanded_path(options["suite"]))
        if suite.digest != options["suite_digest"]:
            raise UserError(f"{options['suite']} is not the suite that the run began with: run it again")
        set_recorded_threads(options["threads"])
        share_frac = options.get("share_frac", 1.0)
        private = expanded_path(options["compositions"])
        known = load_compositions(private) if share_frac < 1 and any(private.glob("*.json")) else []
        models = [Counter(piece.brick for piece in composition.pieces) for composition in known]
        rule = StopRule(options["precision_target_frac"], options["max_rounds"], options["max_seconds"])
        for number, (mode, precision) in enumerate(options["cases"], start=1):
            SuiteRun(suite, mode, precision, torch.device(options["device"]), rule, writer, report, interrupt,
                     options["batch_sizes"], options["precisions"], share_frac, models, crashes
                     ).run(number, len(options["cases"]))
            if interrupt.signal is not None:
                return


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    sys.exit(supervise(run_cases, Path(sys.argv[1]), *map(int, sys.argv[2:])))
