"""Training epochs of a case: its loop, data and schedulers."""

import random
from collections.abc import Callable

import numpy as np
import torch

from charact.execution.batches import Batches
from charact.execution.loop import Loop
from charact.measure.training.plan import Training
from charact.measure.training.stage_timer import Stage, run_stage
from charact.workload.metrics import Metric


class Trainer:
    """State of a training between its epochs.

    Args:
        training: what to train, and how.
        on_iteration: called with the stage's name, the number of finished iterations and the total.

    Raises:
        UserError: the data is not available, or the initial weights do not fit.
    """

    def __init__(self, training: Training, on_iteration: Callable[[str, int, int], None]) -> None:
        case = training.case
        if case.device.type == "cuda":
            torch.cuda.set_device(case.device)  # the loader pins memory for the current one
        if case.compiled:
            torch.compiler.reset()  # so that each case is compiled separately
        self.loop = Loop(case, iter(()))
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
        single = len(trained) % case.batch_size == 1 and case.batch_size > 1  # type: ignore[arg-type]
        self._batches = {
            "training": Batches(case, trained, shuffle=True, whole=single, persistent=False,
                                max_batches=training.max_batches),
            "validation": Batches(case, validated, shuffle=False, whole=False, persistent=False,
                                  max_batches=training.max_batches),
        }

    @property
    def num_samples(self) -> dict[str, int]:
        """Number of samples per stage."""
        return {stage: sum(map(batches.size, range(len(batches)))) for stage, batches in self._batches.items()}

    @property
    def directions(self) -> dict[str, bool]:
        """Whether larger is better, by metric; the first metric selects the best weights."""
        metrics = {metric.name: metric.larger_is_better for metric in self._metrics() if metric.unavailable() is None}
        return metrics | {"loss": False}

    def epoch(self, number: int) -> tuple[Stage, Stage]:
        """Train, validate, and step the schedulers. Randomness depends only on the seed and the epoch's number.

        Raises:
            DivergedError: the loss is not finite.
        """
        seed = _reseed(self.loop.case.data.seed, number)
        metrics = [metric for metric in self._metrics() if not metric.validation_only]
        training = self._stage("training", number, seed, metrics)
        validation = self._stage("validation", number, seed, self._metrics())
        loss = validation.values["loss"]
        assert loss is not None
        for scheduler in self.schedulers:
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step(loss)
            else:
                scheduler.step()
        return training, validation

    def _stage(self, name: str, number: int, seed: int, metrics: list[Metric]) -> Stage:
        return run_stage(name, number, self.loop, self._batches[name], seed, metrics, self._on_iteration)

    def _metrics(self) -> list[Metric]:
        return self.loop.workload.metrics(self.loop.dataset)


def _reseed(seed: int, epoch: int) -> int:
    """Seed all random number generators from seed and epoch, so that checkpoints need no generator state."""
    derived = int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])
    random.seed(derived)
    np.random.seed(derived)
    torch.manual_seed(derived)
    return derived
