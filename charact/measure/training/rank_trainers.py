"""Data-parallel training on several ranks of this machine, driven from the process that writes the record."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from signal import Signals
from typing import Any

from charact.core.errors import UserError
from charact.execution.case_outcome import one_line
from charact.execution.interrupt import Interrupt
from charact.execution.precision import float32_products
from charact.measure.ranks.processes import process_group, start_ranks, threads_of_rank
from charact.measure.training.checkpoint import Progress
from charact.measure.training.epoch_loop import Trainer
from charact.measure.training.plan import Training
from charact.measure.training.stage_timer import DivergedError, Stage
from charact.record.schema import Rows

_PROGRESS_S = 0.1
"""Shortest time between two reports of rank 0's progress."""
_SIGNAL_S = 0.2
"""Time that a signal may need to arrive here after it ended a rank: Ctrl-C goes to all processes of a terminal."""


@dataclass(frozen=True)
class _Task:
    folder: str
    training: Training
    num_threads: int


class RankTrainers:
    """A `Trainer` in a process for each rank, used like a single one.

    All ranks train, each on its share of the samples. Rank 0 validates and writes checkpoints; the others wait. A
    rank's training loss and metrics are those of its share.
    """

    _processes: Sequence[Any] = ()

    def __init__(self, training: Training, on_iteration: Callable[[str, int, int], None], interrupt: Interrupt) -> None:
        self._on_iteration, self._interrupt = on_iteration, interrupt
        num_ranks = training.case.num_ranks
        self._folder = tempfile.TemporaryDirectory(prefix="charact-ranks-")
        pairs = [get_context("spawn").Pipe() for _ in range(num_ranks)]
        self._connections = [own for own, _ in pairs]
        task = _Task(self._folder.name, training, threads_of_rank(num_ranks))
        self._processes = start_ranks(_serve, task, num_ranks, [theirs for _, theirs in pairs]).processes
        try:
            for _, theirs in pairs:
                theirs.close()
            (self.num_parameters, self.num_samples, self.directions), *_ = self._results(range(num_ranks))
        except BaseException:
            self.close()
            raise

    def epoch(self, number: int) -> tuple[Stage, Stage, list[dict[str, Rows]]]:
        """Train, validate, and step the schedulers; return the stages of rank 0, and the rows of the other ranks.

        Raises:
            DivergedError: the loss is not finite on some rank.
        """
        training, *others = self._call("train", number)
        begun = time.perf_counter()
        validation = self._call("validate", number, on_all=False)[0]
        waited: Rows = [{"stage": "validation", "number": number, "phase": "communication",
                         "host_s": time.perf_counter() - begun, "device_s": None, "num_iterations": 0,
                         "num_samples": 0}]
        self._call("step_schedulers", validation.values["loss"])
        return training, validation, [{"stages": [*stage.stage_rows, *waited],
                                       "metrics": [*stage.metric_rows, *validation.metric_rows]} for stage in others]

    def read(self, checkpoint: Path) -> Progress:
        """Continue from a checkpoint on every rank; raise a `UserError` as `read_checkpoint` does."""
        progress: Progress = self._call("read", checkpoint)[0]
        return progress

    def write(self, checkpoint: Path, progress: Progress, weights: Path | None) -> None:
        """Let rank 0 write a checkpoint and, unless None, the weights."""
        self._call("write", checkpoint, progress, weights, on_all=False)

    def close(self) -> None:
        """End the ranks."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        for connection in self._connections:
            connection.close()
        self._folder.cleanup()

    def _call(self, method: str, *arguments: Any, on_all: bool = True) -> list[Any]:
        """Call a method of every rank's trainer, or of rank 0's; return the results by rank."""
        ranks = range(len(self._processes) if on_all else 1)
        for rank in ranks:
            try:
                self._connections[rank].send((method, arguments))
            except OSError:
                raise self._ended() from None
        return self._results(ranks)

    def _results(self, ranks: Sequence[int]) -> list[Any]:
        """Return a result of each of these ranks; raise the error of any rank."""
        results: dict[int, Any] = {}
        while len(results) < len(ranks):
            wait([*self._connections, *[process.sentinel for process in self._processes]])
            errors: list[Exception] = []
            for rank, connection in enumerate(self._connections):
                value: Any = None
                try:
                    kind, value = connection.recv() if connection.poll() else ("nothing", None)
                except (EOFError, OSError):
                    raise self._ended() from None
                if kind == "iteration":
                    self._on_iteration(*value)
                elif kind == "failed":
                    errors.append(value)
                elif kind == "done":
                    results[rank] = value
            if errors:  # that of a closed connection is a consequence
                raise next((error for error in errors if not isinstance(error, RuntimeError)), errors[0])
        return [results[rank] for rank in ranks]

    def _ended(self) -> BaseException:
        """Return the error for a rank that was killed; if a signal ends the run, KeyboardInterrupt."""
        time.sleep(_SIGNAL_S)
        if self._interrupt.signal is not None:
            return KeyboardInterrupt()
        for rank, process in enumerate(self._processes):
            process.join(_SIGNAL_S)
            if process.exitcode is not None and process.exitcode < 0:
                return UserError(f"rank {rank} was ended by {Signals(-process.exitcode).name}")
        return UserError("a rank ended early")


def _serve(rank: int, task: _Task, connections: list[Connection]) -> None:
    """Build the trainer of a rank, and call its methods as the other end of the connection asks for them."""
    connection, case = connections[rank], task.training.case
    for other in connections:
        if other is not connection:
            other.close()
    reported_s = 0.0

    def report(*progress: Any) -> None:
        nonlocal reported_s
        if rank == 0 and time.monotonic() - reported_s >= _PROGRESS_S:
            reported_s = time.monotonic()
            connection.send(("iteration", progress))

    try:
        with process_group(rank, case.num_ranks, task.folder, case.device.type, task.num_threads) as device, \
                float32_products(case.precision):
            training = replace(task.training, case=replace(case, device=device))
            trainer = Trainer(training, report, rank)
            connection.send(("done", (trainer.num_parameters, trainer.num_samples, trainer.directions)))
            while True:
                method, arguments = connection.recv()
                connection.send(("done", getattr(trainer, method)(*arguments)))
    except (EOFError, BrokenPipeError):  # the process that asks has ended
        return
    except (UserError, DivergedError) as error:
        connection.send(("failed", error))
    except Exception as error:
        connection.send(("failed", RuntimeError(f"rank {rank}: {one_line(error, case.precision)}")))
