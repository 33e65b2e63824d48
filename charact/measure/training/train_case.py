"""Training cases: trained or resumed from a checkpoint, with a record and a checkpoint after every epoch."""

import contextlib
import copy
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from charact.core.errors import UserError
from charact.core.observer import Observer
from charact.execution.case_outcome import case_entry, failure
from charact.execution.interrupt import Interrupt
from charact.execution.memory_limit import release_memory
from charact.execution.out_of_memory import host_memory_guard
from charact.execution.precision import float32_products
from charact.measure.training.checkpoint import Progress
from charact.measure.training.epoch_loop import Trainer
from charact.measure.training.plan import Training
from charact.measure.training.rank_trainers import RankTrainers
from charact.measure.training.stage_timer import DivergedError, Stage
from charact.record.in_progress import CHECKPOINTS
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import Passes, Protocol, Target, TrainingPass
from charact.record.schema import UNFINISHED, Rows
from charact.record.writer import RunWriter


def train_cases(trainings: Sequence[Training], writer: RunWriter, observer: Observer, interrupt: Interrupt) -> None:
    """Train each case that the record does not contain as finished, and write it to the record after every epoch.

    A signal ends the run and keeps the finished epochs; `interrupt.signal` is its number.
    """
    for number, training in enumerate(trainings, start=1):
        before = writer.entry(_name(training))
        if before is not None and before.status not in UNFINISHED:
            continue
        observer.case_started(training.case.id, number, len(trainings))
        entry = _CaseTraining(training, writer, observer, interrupt, before).run()
        observer.case_ended(entry.status, entry.reason)
        if interrupt.signal is not None:
            return


def _name(training: Training, rank: int = 0) -> str:
    """Return the name of a training's case; each rank of several has one."""
    return training.case.id + (f"-rank{rank}" if training.case.parallel else "")


class _CaseTraining:
    """Training of one case, from the beginning or from its checkpoint; several ranks have a case each in the record."""

    def __init__(self, training: Training, writer: RunWriter, observer: Observer, interrupt: Interrupt,
                 before: CaseEntry | None) -> None:
        self._training, self._case = training, training.case
        self._writer, self._observer, self._interrupt = writer, observer, interrupt
        self._progress = Progress(0, [], [], None)
        until = None if training.until is None else Target(training.until.metric, training.until.value, None)
        # Until its checkpoint is read, the record keeps the facts of the finished epochs.
        if before is None:
            self._facts = TrainingPass(num_epochs_asked=training.num_epochs, num_epochs=0, until=until,
                                       protocol=msgspec.convert(training.protocol, Protocol | None))
        else:
            self._facts = before.passes.training
            self._facts.num_resumed += 1
        self._facts.update(status="ok", reason=None)
        self._entry = case_entry(self._case)
        self._entry.update(case=_name(training), status="running", passes=Passes(training=self._facts))

    def run(self) -> CaseEntry:
        try:
            with host_memory_guard(self._case.device), float32_products(self._case.precision):
                self._train()
            self._entry.status = "ok"
        except UserError:
            raise
        except KeyboardInterrupt:
            self._end(**self._interrupt.ending())
        except DivergedError as error:
            self._end(status="diverged", reason=str(error))
        except Exception as error:
            self._end(**failure(error, self._case.precision))
        self._flush()
        if self._entry.status not in UNFINISHED:
            self._checkpoint_path.unlink(missing_ok=True)
        release_memory(self._case.device)
        return self._entry

    def _end(self, **ending: Any) -> None:
        self._entry.update(**ending)
        self._facts.update(status="failed", reason=ending["reason"])

    def _train(self) -> None:
        begun = time.perf_counter()
        with self._interrupt.allowed():
            trainer = (RankTrainers(self._training, self._observer.stage_iteration, self._interrupt)
                       if self._case.parallel else Trainer(self._training, self._observer.stage_iteration))
        with contextlib.closing(trainer):
            self._entry.num_parameters = trainer.num_parameters
            num_samples = trainer.num_samples
            self._facts.update(setup_s=time.perf_counter() - begun, num_train_samples=num_samples["training"],
                               num_valid_samples=num_samples["validation"])
            if not self._checkpoint_path.exists():
                self._advance(Progress(0, [], [], None))
                self._facts.compile_s = None
            else:
                self._advance(trainer.read(self._checkpoint_path))
                # Write it again: it does not contain its own time, and the weights may be missing.
                self._checkpoint(trainer)
            self._flush()
            num_epochs = self._training.num_epochs
            while self._progress.epoch < num_epochs and not self._target_is_reached(trainer):
                number = self._progress.epoch + 1
                self._observer.epoch_started(number, num_epochs)
                with self._interrupt.allowed():
                    training, validation, others = trainer.epoch(number)
                self._take(number, training, validation, others, trainer.directions)
                self._checkpoint(trainer)
                self._flush()
                seconds = sum(row["host_s"] for row in self._progress.stages if row["number"] == number)
                self._observer.epoch_ended(number, num_epochs, training.values, validation.values, seconds)

    def _take(self, number: int, training: Stage, validation: Stage, others: list[dict[str, Rows]],
              directions: dict[str, bool]) -> None:
        metric, larger_is_better = next(iter(directions.items()))
        value, best = validation.values[metric], self._progress.best
        if value is not None and (best is None or (value > best["value"] if larger_is_better
                                                   else value < best["value"])):
            best = {"metric": metric, "value": value, "epoch": number}
        for compile_s in (training.compile_s, validation.compile_s):
            if compile_s is not None:
                self._facts.compile_s = (self._facts.compile_s or 0.0) + compile_s
        done = self._progress
        before = done.others or [{"stages": [], "metrics": []} for _ in others]
        self._advance(Progress(
            number, [*done.stages, *training.stage_rows, *validation.stage_rows],
            [*done.metrics, *training.metric_rows, *validation.metric_rows], best,
            [{table: [*old[table], *rows[table]] for table in old} for old, rows in zip(before, others, strict=True)]))

    def _advance(self, progress: Progress) -> None:
        self._progress = progress
        best = progress.best
        self._facts.update(num_epochs=progress.epoch, best=None if best is None else Target(**best),
                           weights=None if best is None else f"weights/{_name(self._training)}.pt")

    def _target_is_reached(self, trainer: Trainer | RankTrainers) -> bool:
        target = self._training.until
        if target is None:
            return False
        for row in self._progress.metrics:
            if (row["stage"], row["metric"]) == ("validation", target.metric) and target.is_reached(
                    row["value"], trainer.directions[target.metric]):
                self._facts.until = Target(target.metric, target.value, row["number"])
                return True
        return False

    def _checkpoint(self, trainer: Trainer | RankTrainers) -> None:
        """Write the checkpoint, then the weights if they are the best so far, and time both."""
        begun = time.perf_counter()
        self._writer.folder(CHECKPOINTS)
        best = self._progress.best
        is_best = best is not None and best["epoch"] == self._progress.epoch
        trainer.write(self._checkpoint_path, self._progress,
                      self._writer.folder("weights") / f"{_name(self._training)}.pt" if is_best else None)
        row = {"stage": "checkpointing", "number": self._progress.epoch, "phase": "other",
               "host_s": time.perf_counter() - begun, "device_s": None, "num_iterations": 0, "num_samples": 0}
        self._progress.stages.append(row)
        for other in self._progress.others:  # these ranks wait for it
            other["stages"].append(row | {"phase": "communication"})

    def _flush(self) -> None:
        # A copy, so that the running epoch does not change the written entry.
        entry = copy.deepcopy(self._entry)
        self._writer.add_case(entry, {"stages": self._progress.stages, "metrics": self._progress.metrics})
        for rank, other in enumerate(self._progress.others, start=1):
            self._writer.add_case(msgspec.structs.replace(entry, case=_name(self._training, rank), rank=rank), other)

    @property
    def _checkpoint_path(self) -> Path:
        return self._writer.directory / CHECKPOINTS / f"{_name(self._training)}.pt"
