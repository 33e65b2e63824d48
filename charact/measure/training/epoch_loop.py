"""Training epochs of a case: its loop, data and schedulers."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from charact.execution.batches import Batches
from charact.execution.loop import Loop
from charact.execution.tensor_files import write_tensors
from charact.measure.training.checkpoint import Progress, read_checkpoint, write_checkpoint
from charact.measure.training.plan import Training
from charact.measure.training.stage_timer import Stage, run_stage
from charact.record.schema import Rows
from charact.workload.metrics import Metric


class Trainer:
    """State of a training between its epochs."""

    def __init__(self, training: Training, on_iteration: Callable[[str, int, int], None], rank: int = 0) -> None:
        case = training.case
        self._rank = rank
        if case.device.type == "cuda":
            torch.cuda.set_device(case.device)  # the loader pins memory for the current one
        if case.compiled:
            torch.compiler.reset()  # so that each case is compiled separately
        self.loop = Loop(case, iter(()), wrap=DistributedDataParallel if case.parallel else None)
        self._on_iteration = on_iteration
        if training.weights is not None:
            from charact.measure.training.weight_files import load_weights

            load_weights(self.loop.model, training.weights)
        for optimizer in self.loop.optimizers if training.learning_rate is not None else ():
            for group in optimizer.param_groups:
                group["lr"] = training.learning_rate
        self.schedulers = self.loop.workload.schedulers(self.loop.optimizers, training.num_epochs)
        trained, validated = training.parts(self.loop.dataset)
        # Batch normalization cannot take a single sample.
        num_trained = len(trained) // case.num_ranks  # type: ignore[arg-type]
        single = num_trained % case.batch_size == 1 and case.batch_size > 1
        self._batches = {
            "training": Batches(case, trained, shuffle=True, whole=single, persistent=False,
                                max_batches=training.max_batches,
                                share=(rank, case.num_ranks) if case.parallel else None),
            "validation": Batches(case, validated, shuffle=False, whole=False, persistent=False,
                                  max_batches=training.max_batches),
        }

    @property
    def num_parameters(self) -> int:
        """Number of the model's parameters."""
        return sum(parameter.numel() for parameter in self.loop.model.parameters())

    @property
    def num_samples(self) -> dict[str, int]:
        """Number of samples per stage."""
        return {stage: sum(map(batches.size, range(len(batches)))) for stage, batches in self._batches.items()}

    @property
    def directions(self) -> dict[str, bool]:
        """Whether larger is better, by metric; the first metric selects the best weights."""
        metrics = {metric.name: metric.larger_is_better for metric in self._metrics() if metric.unavailable() is None}
        return metrics | {"loss": False}

    def epoch(self, number: int) -> tuple[Stage, Stage, list[dict[str, Rows]]]:
        """Train, validate, and step the schedulers; return both stages, and the rows of other ranks: none.

        Randomness depends only on the seed and the epoch's number.

        Raises:
            DivergedError: the loss is not finite.
        """
        training = self.train(number)
        validation = self.validate(number)
        self.step_schedulers(validation.values["loss"])
        return training, validation, []

    def train(self, number: int) -> Stage:
        """Train for an epoch; on several ranks, all have the same order of samples, and each its random numbers."""
        order = _seed(self.loop.case.data.seed, number)
        own = _seed(self.loop.case.data.seed, number, self._rank) if self._rank else order
        random.seed(own)
        np.random.seed(own)
        torch.manual_seed(own)
        metrics = [metric for metric in self._metrics() if not metric.validation_only]
        return self._stage("training", number, order, metrics)

    def validate(self, number: int) -> Stage:
        """Validate after an epoch's training."""
        return self._stage("validation", number, _seed(self.loop.case.data.seed, number), self._metrics())

    def step_schedulers(self, loss: float | None) -> None:
        """Step the schedulers at the end of an epoch with this validation loss."""
        assert loss is not None
        for scheduler in self.schedulers:
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step(loss)
            else:
                scheduler.step()

    def read(self, checkpoint: Path) -> Progress:
        """Continue from a checkpoint; raises as `read_checkpoint`."""
        return read_checkpoint(checkpoint, self.loop, self.schedulers)

    def write(self, checkpoint: Path, progress: Progress, weights: Path | None) -> None:
        """Write a checkpoint and, unless None, the weights; raises as `write_tensors`."""
        write_checkpoint(checkpoint, self.loop, self.schedulers, progress)
        if weights is not None:
            write_tensors(self.loop.model.state_dict(), weights)

    def close(self) -> None:
        """Release the loader."""
        self.loop.close()

    def _stage(self, name: str, number: int, seed: int, metrics: list[Metric]) -> Stage:
        return run_stage(name, number, self.loop, self._batches[name], seed, metrics, self._on_iteration)

    def _metrics(self) -> list[Metric]:
        return self.loop.workload.metrics(self.loop.dataset)


def _seed(*numbers: int) -> int:
    """Derive a seed from a training's seed, an epoch and a rank, so that checkpoints need no generator state."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
