"""Running a suite of bricks into a record, which is flushed between rounds and can be resumed after a kill."""

import contextlib
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from charact.bricks.aten import runnable
from charact.bricks.suite.brick import Brick, runs_as
from charact.bricks.suite.composition import load_compositions
from charact.bricks.suite.prediction import chosen_to_time, sizes_of
from charact.bricks.suite.suite import Suite, load_suite
from charact.bricks.timing.rounds import Rounds, as_stored, described
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
    """Set PyTorch's number of threads to that of a record, which may be untrusted."""
    if type(number) is not int or not 1 <= number <= _MOST_THREADS:
        raise UserError(f"the run was made with {ascii(number)[:40]} threads, which no machine has: run the "
                        "suite again")
    torch.set_num_threads(number)


_FLUSH_EVERY_S = 2.0
_FLUSH_FRAC = 0.05
"""Maximum share of the time spent on flushing."""


def run_bricks(suite: Suite, mode: str, precision: str, device: torch.device, rule: StopRule, writer: RunWriter,
               observer: Observer, interrupt: Interrupt, batch_sizes: Sequence[int] | None = None,
               method: str = "contextual", place: tuple[int, int] = (1, 1), share_frac: float = 1.0,
               models: Sequence[Mapping[str, int]] = (), precisions: Sequence[str] | None = None,
               crashes: Crashes | None = None) -> None:
    """Time a suite's bricks on a device, and flush the times to the record every few seconds and at the end.

    An unfinished case of the record is resumed after its last complete round. A brick that fails is recorded with its
    reason, and the run continues. A signal ends the run after the last complete round and is in `interrupt.signal`.

    Args:
        suite: the suite; bricks of the given mode, precision and batch sizes run.
        mode: as in `schema.MODES`.
        precision: as in `schema.PRECISIONS`.
        device: device to run on.
        rule: stop rule; its iterations are rounds. With the method `paper` each brick gets an equal part of the
            seconds, and at most as many repetitions as the rule has rounds.
        writer: of the record.
        observer: receives progress; its iterations are rounds.
        interrupt: ends the run early.
        batch_sizes: of the bricks' models; by default all.
        method: `contextual` or `paper`.
        place: number of this case and of all cases, for the observer.
        share_frac: share of the bricks to time, in inference; the times of the others can be predicted.
        models: number of uses of each brick, for each known model, to choose the bricks to time.
        precisions: of the bricks' models; by default all that run in `precision`.
        crashes: bricks that ended earlier processes of this run.
    """
    if reason := unsupported_reason(precision, device):
        raise UserError(reason)
    bricks = chosen_bricks(suite, mode, precision, batch_sizes, precisions)
    run = _SuiteRun(suite, bricks, mode, precision, device, rule, writer, observer, interrupt, method,
                    crashes or Crashes(), share_frac, models)
    before = writer.entry(run.case)
    if before is not None and before.status not in UNFINISHED:
        return
    observer.case_started(run.case, *place)
    entry = run.run(before)
    observer.case_ended(entry.status, entry.reason)


def chosen_bricks(suite: Suite, mode: str, precision: str, batch_sizes: Sequence[int] | None,
                  precisions: Sequence[str] | None = None) -> list[Brick]:
    """Return the matching bricks, sorted by identifier.

    Bricks of autocast precisions and of pure-bf16 carry their own dtypes and count as fp32. Bricks of models without a
    batch size match every batch size.
    """
    found = [name for name, entry in sorted(suite.bricks.items())
             if entry["mode"] == mode and entry["precision"] == runs_as(precision)
             and (batch_sizes is None or not entry["batch_sizes"] or set(batch_sizes) & set(entry["batch_sizes"]))
             and (precisions is None or set(precisions) & set(entry["precisions"]))]
    if not found:
        raise UserError(f"the suite {suite.name} has no bricks for {mode} in {precision} with these batch sizes and "
                        "precisions: choose other options, or generate them")
    return [suite.brick(name) for name in found]


class _SuiteRun:
    """One case: all bricks of a mode and a precision. The arguments are those of `run_bricks`."""

    def __init__(self, suite: Suite, bricks: list[Brick], mode: str, precision: str, device: torch.device,
                 rule: StopRule, writer: RunWriter, observer: Observer, interrupt: Interrupt, method: str,
                 crashes: Crashes, share_frac: float, models: Sequence[Mapping[str, int]]) -> None:
        self._bricks, self._mode, self._precision, self._device = bricks, mode, precision, device
        self._rule, self._writer, self._observer, self._interrupt = rule, writer, observer, interrupt
        self._method, self._crashes, self._share_frac, self._models = method, crashes, share_frac, models
        self._left_out: Rows = []
        self.case = f"bricks-{suite.name}-g{suite.g}-{mode}-{precision}-{str(device).replace(':', '')}"
        self._facts = BricksPass(
            "ok", method=method, suite=suite.name, suite_digest=suite.digest, g=suite.g, cut_method=suite.method,
            num_bricks=len(bricks), num_rounds=0, precision_target_frac=rule.precision_target_frac, timed_s=0.0,
            set_up_s=0.0)
        self._entry = CaseEntry(
            self.case, "running", workload="bricks", variant=suite.name, mode=mode, precision=precision,
            device=str(device), device_name=device_name(device), data="synthetic", passes=Passes(bricks=self._facts))
        self._rounds: Rounds | None = None
        self._flushed, self._flushing_s = time.perf_counter(), 0.0

    def run(self, before: CaseEntry | None) -> CaseEntry:
        """Time the bricks and return the case's entry."""
        rows = {} if before is None else self._rows_before(before)
        gradients = torch.enable_grad() if self._mode == "train" else torch.inference_mode()
        try:
            with host_memory_guard(self._device), brick_settings(self._precision), gradients:
                rounds = self._time(rows)
            self._entry.status = "ok"
            if not rounds.left:
                first = next(iter(rounds.rows.values()))
                self._end(status=first["status"], reason=f"every brick failed; the first: {first['reason']}")
        except UserError:
            raise
        except KeyboardInterrupt:
            self._end(**self._interrupt.ending())
        except Exception as error:
            self._end(**failure(error, self._precision))
        self._flush()
        self._rounds = None
        release_memory(self._device)
        return self._entry

    def _time(self, before: dict[str, Rows]) -> Rounds:
        begun = time.perf_counter()
        with self._interrupt.allowed():
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)  # events are recorded on the current one
            if rows := before.get("bricks"):  # a resumed run keeps its choice, since the known models may have changed
                self._left_out = [row for row in rows if row["status"] == LEFT_OUT]
            elif self._share_frac < 1:
                self._left_out = left_out(self._bricks, self._share_frac, self._models, self._crashes)
            names = {row["brick"] for row in self._left_out}
            self._rounds = rounds = Rounds(
                [brick for brick in self._bricks if brick.id not in names], self._device,
                training=self._mode == "train", crashes=self._crashes,
                before={table: [row for row in rows if row["brick"] not in names] for table, rows in before.items()})
        self._facts.update(**rounds.facts, preparing_s=self._facts.preparing_s + time.perf_counter() - begun)
        self._observer.pass_started("bricks")
        with self._interrupt.allowed():
            warm_device(self._device)
        self._warm(rounds) if self._method == "paper" else self._in_context(rounds)
        if self._crashes.note is not None:
            self._flush()  # a brick may end the process while its work is counted
        begun = time.perf_counter()
        self._observer.pass_started("work")
        with self._interrupt.allowed():
            rounds.describe()
        self._facts.update(describing_s=time.perf_counter() - begun, uncounted=sorted(rounds.uncounted),
                           undescribed=rounds.undescribed)
        return rounds

    def _in_context(self, rounds: Rounds) -> None:
        while (reason := rounds.ended_by(self._rule)) is None:
            begun = time.perf_counter()
            rounds.round(interruptible=self._interrupt.allowed)
            self._observer.iteration(rounds.num_rounds, time.perf_counter() - begun)
            self._flush_if_due()
        self._facts.update(ended_by=reason, interval_frac=rounds.interval_frac())

    def _warm(self, rounds: Rounds) -> None:
        """Time one brick after another, each for its share of the time."""
        rule = replace(self._rule, max_seconds=self._rule.max_seconds / max(1, len(rounds.left)))
        for number, brick in enumerate(rounds.left, start=1):
            begun = time.perf_counter()
            with self._interrupt.allowed():
                rounds.repeat_warm(brick, rule)
            self._observer.iteration(number, time.perf_counter() - begun)
            self._flush_if_due()
        self._facts.ended_by = "repetitions"

    def _end(self, **ending: Any) -> None:
        self._entry.update(**ending)
        self._facts.update(status="failed", reason=ending["reason"])

    def _flush_if_due(self) -> None:
        since = time.perf_counter() - self._flushed
        if since >= max(_FLUSH_EVERY_S, self._flushing_s / _FLUSH_FRAC):
            begun = time.perf_counter()
            self._flush()
            self._flushing_s = time.perf_counter() - begun

    def _flush(self) -> None:
        tables: dict[str, Rows] = {}
        if self._rounds is not None:
            rows = self._rounds.rows.values()
            self._facts.update(num_rounds=self._rounds.num_rounds, num_left_out=len(self._left_out),
                               num_failed=sum(row["reason"] is not None for row in rows),
                               timed_s=self._rounds.timed_s, set_up_s=self._rounds.set_up_s)
            tables = {"bricks": [*map(as_stored, rows), *self._left_out], "brick_times": self._rounds.times}
        self._writer.add_case(self._entry, tables)
        self._flushed = time.perf_counter()

    def _rows_before(self, entry: CaseEntry) -> dict[str, Rows]:
        """Return the record's rows of complete rounds."""
        facts = entry.passes.bricks
        if facts.suite_digest != self._facts.suite_digest:
            raise UserError(f"the suite {self._facts.suite} is no longer what {self.case} was begun with: start a "
                            "new run")
        facts.update(status="ok", reason=None, num_resumed=facts.num_resumed + (0 if self._crashes.signals else 1))
        self._facts = self._entry.passes["bricks"] = facts
        run = load_run(self._writer.directory, partial=True)
        found: dict[str, Rows] = {}
        for table in ("bricks", "brick_times"):
            rows = run.table(table)
            rows = rows[rows["case"] == self.case].drop(columns="case")
            records = rows.astype(object).where(rows.notna(), None).to_dict("records")
            found[table] = [{str(column): value for column, value in record.items()} for record in records]
        return found


def left_out(bricks: Sequence[Brick], share_frac: float, models: Iterable[Mapping[str, int]],
             crashes: Crashes | None = None) -> list[dict[str, Any]]:
    """Return rows of the bricks that `chosen_to_time` does not choose.

    FLOP and bytes are counted on fake tensors. A brick for which this fails is timed.
    """
    crashes = crashes or Crashes()
    rows: dict[str, dict[str, Any]] = {}
    for brick in bricks:
        if brick.id in crashes.endings(TIMING):
            continue
        with crashes.running(brick.id, TIMING):
            if (work := _fake_work(brick)) is not None:
                rows[brick.id] = described(brick) | work
    chosen = chosen_to_time({brick: sizes_of(row) for brick, row in rows.items()}, models, share_frac)
    ending = {"status": LEFT_OUT, "reason": "not timed: its time is predicted from similar bricks", "num_rounds": 0,
              "set_up_s": 0.0}
    return [as_stored(row) | ending for brick, row in rows.items() if brick not in chosen]


def _fake_work(brick: Brick) -> dict[str, float | None] | None:
    """Return FLOP and bytes of one call, or None if an operator needs values."""
    try:
        with FakeTensorMode():
            inputs = [torch.empty_strided(each.type.shape, each.type.stride, dtype=getattr(torch, each.type.dtype))
                      for each in brick.inputs]
            call = runnable(brick, "cpu")
            flop, num_bytes, _ = work_of(lambda: call(inputs))
    except Exception:  # operators raise many types for fake tensors
        return None
    return {"flop": flop, "bytes": num_bytes}


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
        models = _known_models(expanded_path(options["compositions"])) if share_frac < 1 else []
        rule = StopRule(options["precision_target_frac"], options["max_rounds"], options["max_seconds"])
        for number, (mode, precision) in enumerate(options["cases"], start=1):
            run_bricks(suite, mode, precision, torch.device(options["device"]), rule, writer, report, interrupt,
                       options["batch_sizes"], options["method"], (number, len(options["cases"])), share_frac, models,
                       options["precisions"], crashes)
            if interrupt.signal is not None:
                return


def _known_models(private: Path) -> list[Mapping[str, int]]:
    """Return the number of uses of each brick for each model with a composition in the directory."""
    compositions = load_compositions(private) if any(private.glob("*.json")) else []
    return [Counter(piece.brick for piece in composition.pieces) for composition in compositions]


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    sys.exit(supervise(run_cases, Path(sys.argv[1]), *map(int, sys.argv[2:])))
