"""Training cases: trained or resumed from a checkpoint, with a record and a checkpoint after every epoch."""

import copy
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from charact.core.errors import UserError
from charact.core.observer import Observer
from charact.execution.case_outcome import case_entry, failure
from charact.execution.interrupt import Interrupt
from charact.execution.memory_limit import release_memory
from charact.execution.out_of_memory import host_memory_guard
from charact.execution.precision import float32_products
from charact.execution.tensor_files import write_tensors
from charact.measure.training.checkpoint import Progress, read_checkpoint, write_checkpoint
from charact.measure.training.epoch_loop import Trainer
from charact.measure.training.plan import Training
from charact.measure.training.stage_timer import DivergedError, Stage
from charact.record.in_progress import CHECKPOINTS
from charact.record.schema import UNFINISHED
from charact.record.writer import RunWriter


def train_cases(trainings: Sequence[Training], writer: RunWriter, observer: Observer, interrupt: Interrupt) -> None:
    """Train each case that the record does not contain as finished, and write it to the record after every epoch.

    A signal ends the run and keeps the finished epochs; `interrupt.signal` is its number.

    Raises:
        UserError: the record or a checkpoint cannot be written or read, or weights do not fit; finished epochs are
            kept.
    """
    for number, training in enumerate(trainings, start=1):
        before = writer.entry(training.case.id)
        if before is not None and before["status"] not in UNFINISHED:
            continue
        observer.case_started(training.case.id, number, len(trainings))
        entry = _CaseTraining(training, writer, observer, interrupt, before).run()
        observer.case_ended(entry["status"], entry["reason"])
        if interrupt.signal is not None:
            return


class _CaseTraining:
    """Training of one case, from the beginning or from its checkpoint."""

    def __init__(self, training: Training, writer: RunWriter, observer: Observer, interrupt: Interrupt,
                 before: dict[str, Any] | None) -> None:
        self._training, self._case = training, training.case
        self._writer, self._observer, self._interrupt = writer, observer, interrupt
        self._progress = Progress(0, [], [], None)
        self._facts: dict[str, Any] = {
            "status": "ok", "reason": None, "num_epochs_asked": training.num_epochs, "num_epochs": 0, "setup_s": None,
            "until": None if training.until is None else training.until._asdict() | {"epoch": None}, "best": None,
            "num_train_samples": None, "num_valid_samples": None, "num_resumed": 0, "weights": None,
            "protocol": training.protocol, "compile_s": None,
        }
        if before is not None:
            # Until its checkpoint is read, the record keeps the facts of the finished epochs.
            self._facts |= before["passes"]["training"] | {"status": "ok", "reason": None}
            self._facts["num_resumed"] += 1
        self._entry = case_entry(self._case) | {"status": "running", "passes": {"training": self._facts}}

    def run(self) -> dict[str, Any]:
        """Train; return the case's manifest entry."""
        try:
            with host_memory_guard(self._case.device), float32_products(self._case.precision):
                self._train()
            self._entry["status"] = "ok"
        except UserError:
            raise
        except KeyboardInterrupt:
            self._end(**self._interrupt.ending())
        except DivergedError as error:
            self._end(status="diverged", reason=str(error))
        except Exception as error:
            self._end(**failure(error))
        self._flush()
        if self._entry["status"] not in UNFINISHED:
            self._checkpoint_path.unlink(missing_ok=True)
        release_memory(self._case.device)
        return self._entry

    def _end(self, **ending: Any) -> None:
        self._entry |= ending
        self._facts |= {"status": "failed", "reason": ending["reason"]}

    def _train(self) -> None:
        begun = time.perf_counter()
        with self._interrupt.allowed():
            trainer = Trainer(self._training, self._observer.stage_iteration)
        self._facts["setup_s"] = time.perf_counter() - begun
        self._entry["num_parameters"] = sum(parameter.numel() for parameter in trainer.loop.model.parameters())
        num_samples = trainer.num_samples
        self._facts |= {"num_train_samples": num_samples["training"], "num_valid_samples": num_samples["validation"]}
        if not self._checkpoint_path.exists():
            self._advance(Progress(0, [], [], None))
            self._facts["compile_s"] = None
        else:
            self._advance(read_checkpoint(self._checkpoint_path, trainer.loop, trainer.schedulers))
            # Write it again: it does not contain its own time, and the weights may be missing.
            self._checkpoint(trainer)
        self._flush()
        num_epochs = self._training.num_epochs
        while self._progress.epoch < num_epochs and not self._target_is_reached(trainer):
            number = self._progress.epoch + 1
            self._observer.epoch_started(number, num_epochs)
            with self._interrupt.allowed():
                training, validation = trainer.epoch(number)
            self._take(number, training, validation, trainer)
            self._checkpoint(trainer)
            self._flush()
            seconds = sum(row["host_s"] for row in self._progress.stages if row["number"] == number)
            self._observer.epoch_ended(number, num_epochs, training.values, validation.values, seconds)

    def _take(self, number: int, training: Stage, validation: Stage, trainer: Trainer) -> None:
        """Add a finished epoch to the progress."""
        metric, larger_is_better = next(iter(trainer.directions.items()))
        value, best = validation.values[metric], self._progress.best
        if value is not None and (best is None or (value > best["value"] if larger_is_better
                                                   else value < best["value"])):
            best = {"metric": metric, "value": value, "epoch": number}
        for compile_s in (training.compile_s, validation.compile_s):
            if compile_s is not None:
                self._facts["compile_s"] = (self._facts["compile_s"] or 0.0) + compile_s
        self._advance(Progress(
            number, [*self._progress.stages, *training.stage_rows, *validation.stage_rows],
            [*self._progress.metrics, *training.metric_rows, *validation.metric_rows], best))

    def _advance(self, progress: Progress) -> None:
        self._progress = progress
        self._facts |= {"num_epochs": progress.epoch, "best": progress.best,
                        "weights": None if progress.best is None else f"weights/{self._case.id}.pt"}

    def _target_is_reached(self, trainer: Trainer) -> bool:
        target = self._training.until
        if target is None:
            return False
        for row in self._progress.metrics:
            if (row["stage"], row["metric"]) == ("validation", target.metric) and target.is_reached(
                    row["value"], trainer.directions[target.metric]):
                self._facts["until"]["epoch"] = row["number"]
                return True
        return False

    def _checkpoint(self, trainer: Trainer) -> None:
        """Write the checkpoint, then the weights if they are the best so far, and time both."""
        begun = time.perf_counter()
        self._writer.folder(CHECKPOINTS)
        write_checkpoint(self._checkpoint_path, trainer.loop, trainer.schedulers, self._progress)
        best = self._progress.best
        if best is not None and best["epoch"] == self._progress.epoch:
            name = f"{self._case.id}.pt"
            write_tensors(trainer.loop.model.state_dict(), self._writer.folder("weights") / name)
        self._progress.stages.append({
            "stage": "checkpointing", "number": self._progress.epoch, "phase": "other",
            "host_s": time.perf_counter() - begun, "device_s": None, "num_iterations": 0, "num_samples": 0})

    def _flush(self) -> None:
        # A copy, so that the running epoch does not change the written entry.
        entry = copy.deepcopy(self._entry)
        self._writer.add_case(entry, {"stages": self._progress.stages, "metrics": self._progress.metrics})

    @property
    def _checkpoint_path(self) -> Path:
        return self._writer.directory / CHECKPOINTS / f"{self._case.id}.pt"
