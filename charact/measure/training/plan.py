"""How a case is trained: its epochs, what it is validated on, what it starts from and what it stops at."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import Dataset

from charact.core.errors import UserError
from charact.datasets._common.spec import Split
from charact.execution.case import Case


class Target(NamedTuple):
    """What a training stops at: a metric's value in a validation."""

    metric: str
    value: float

    def is_reached(self, value: float | None, larger_is_better: bool) -> bool:
        """Whether a value is as good or better; none is not."""
        return value is not None and (value >= self.value if larger_is_better else value <= self.value)


@dataclass(frozen=True)
class Training:
    """How a case is trained.

    Either `validation` names the split that it is validated on, or `holdout_frac` the share of the training split
    that is held out for it.
    """

    case: Case
    num_epochs: int
    validation: Split | None = None
    holdout_frac: float | None = None
    until: Target | None = None
    learning_rate: float | None = None
    """In place of the workload's own."""
    weights: Path | None = None
    """File of the weights to start from; None draws them."""
    protocol: dict[str, Any] | None = None
    """What the record is told of the published protocol that is followed."""

    def parts(self, dataset: Dataset[Any]) -> tuple[Dataset[Any], Dataset[Any]]:
        """What is trained on, and what is validated on, of the case's dataset or beside it.

        Raises:
            UserError: the validation's data have other classes or words, or a part is too small.
        """
        if self.holdout_frac is not None:
            from charact.datasets._common.holdout import hold_out

            rest, held = hold_out(dataset, self.holdout_frac, self.case.data.seed, self.case.batch_size)
            return rest, held
        assert self.validation is not None
        other = replace(self.case, data=replace(self.case.data, split=self.validation)).dataset()
        self._check_fit(dataset, other)
        return dataset, other

    def check(self) -> None:
        """Refuse what cannot run, before anything is written.

        Raises:
            UserError: as `Case.check`, `parts` and `check_weights`, or the target's metric is none of the workload's
                or not to be had.
        """
        self.case.check()
        dataset = self.case.dataset()
        self.parts(dataset)
        if self.weights is not None:
            from charact.measure.training.weight_files import check_weights

            check_weights([self.case], self.weights)
        if self.until is None:
            return
        metrics = {metric.name: metric for metric in self.case.workload.metrics(dataset)}
        if self.until.metric not in ("loss", *metrics):
            raise UserError(f"--until: {self.case.workload.name} has no metric '{self.until.metric}': choose from "
                            f"{', '.join(['loss', *metrics])}")
        if self.until.metric in metrics and (reason := metrics[self.until.metric].unavailable()):
            raise UserError(f"--until: {self.until.metric} cannot be told: {reason}")

    def _check_fit(self, dataset: Dataset[Any], other: Dataset[Any]) -> None:
        for what in ("classes", "words"):
            trained, validated = _number_of(what, dataset), _number_of(what, other)
            if trained != validated:
                raise UserError(
                    f"{self.case.data.name} ({self.validation}) has {validated:,} {what}, the model is made for the "
                    f"{trained:,} of {self.case.data.split}: validate on a share of that with --holdout 0.1")


def _number_of(what: str, dataset: Any) -> int | None:
    """Classes or words that a dataset says it has; None where it does not say."""
    vocabulary = getattr(dataset, "target_vocabulary", None) if what == "words" else None
    return getattr(dataset, f"num_{what}", None) if vocabulary is None else len(vocabulary)
