"""Plan of a case's training: epochs, validation data, initial weights and stop target."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset

from charact.core.errors import UserError
from charact.datasets._common.spec import Split
from charact.execution.case import Case


class Target(NamedTuple):
    """Value of a validation metric at which a training stops."""

    metric: str
    value: float

    def is_reached(self, value: float | None, larger_is_better: bool) -> bool:
        """Return whether a value is as good or better; None is not."""
        return value is not None and (value >= self.value if larger_is_better else value <= self.value)


@dataclass(frozen=True)
class Training:
    """Plan of a case's training.

    `validation` names the split for the validation; otherwise `holdout_frac` is the share of the training split.
    """

    case: Case
    num_epochs: int
    validation: Split | None = None
    holdout_frac: float | None = None
    until: Target | None = None
    learning_rate: float | None = None
    """Replaces the workload's own."""
    weights: Path | None = None
    """File of the initial weights; None initializes them randomly."""
    max_batches: int | None = None
    """Largest number of batches of each training and of each validation; None for all."""
    protocol: dict[str, Any] | None = None
    """Facts for the record about the published protocol."""

    def parts(self, dataset: Dataset[Any]) -> tuple[Dataset[Any], Dataset[Any]]:
        """Return the training and validation data."""
        if self.holdout_frac is not None:
            from charact.datasets._common.holdout import hold_out

            rest, held = hold_out(dataset, self.holdout_frac, self.case.data.seed, self.case.batch_size)
            return rest, held
        assert self.validation is not None
        other = replace(self.case, data=replace(self.case.data, split=self.validation)).dataset()
        for what in ("classes", "words"):
            trained, validated = _number_of(what, dataset), _number_of(what, other)
            if trained != validated:
                raise UserError(
                    f"{self.case.data.name} ({self.validation}) has {validated:,} {what}, the model is made for the "
                    f"{trained:,} of {self.case.data.split}: validate on a share of that with --holdout 0.1")
        return dataset, other

    def check(self) -> None:
        """Raise if the training cannot run, before anything is written."""
        case = self.case
        case.check()
        dataset = case.dataset()
        trained: Any = self.parts(dataset)[0]
        if case.parallel and case.device.type == "cuda" and torch.cuda.device_count() < case.num_ranks:
            raise UserError(f"--nproc {case.num_ranks} needs as many CUDA devices, this machine has "
                            f"{torch.cuda.device_count()}: use --device cpu, or a smaller --nproc")
        if case.parallel and not getattr(dataset, "shuffled", True):
            raise UserError(f"--nproc: {case.workload.name} reads {case.data.name} in its order, which ranks cannot "
                            "share: leave --nproc out")
        if case.parallel and case.batch_size * case.num_ranks > len(trained):
            raise UserError(f"a batch of {case.batch_size} for each of {case.num_ranks} ranks is more than the "
                            f"{len(trained):,} samples of {case.data.name}: choose smaller --batch-sizes or --nproc")
        if self.weights is not None:
            from charact.measure.training.weight_files import check_weights

            check_weights([case], self.weights)
        if self.until is None:
            return
        metrics = {metric.name: metric for metric in case.workload.metrics(dataset)}
        if self.until.metric not in ("loss", *metrics):
            raise UserError(f"--until: {case.workload.name} has no metric '{self.until.metric}': choose from "
                            f"{', '.join(['loss', *metrics])}")
        if self.until.metric in metrics and (reason := metrics[self.until.metric].unavailable()):
            raise UserError(f"--until: {self.until.metric} is not available: {reason}")


def _number_of(what: str, dataset: Any) -> int | None:
    vocabulary = getattr(dataset, "target_vocabulary", None) if what == "words" else None
    return getattr(dataset, f"num_{what}", None) if vocabulary is None else len(vocabulary)
