"""Progress callbacks."""

from collections.abc import Mapping


class Observer:
    """Callbacks that report the progress of a run, called between iterations and passes, never inside one.

    Every method does nothing here: a subclass overrides those that it needs.
    """

    def case_started(self, case_id: str, number: int, total: int) -> None:
        """Case `number` of `total` starts; numbers begin at 1."""

    def time_left(self, seconds: float) -> None:
        """The next case and all later ones are expected to take this long together."""

    def pass_started(self, name: str) -> None:
        """A pass of the case starts."""

    def iteration(self, num_iterations: int, median_s: float) -> None:
        """The timing pass has measured `num_iterations` iterations, with this median time."""

    def epoch_started(self, epoch: int, num_epochs: int) -> None:
        """Epoch `epoch` of `num_epochs` starts; numbers begin at 1."""

    def stage_iteration(self, stage: str, number: int, total: int) -> None:
        """Iteration `number` of `total` of a stage has ended."""

    def epoch_ended(self, epoch: int, num_epochs: int, training: Mapping[str, float | None],
                    validation: Mapping[str, float | None], seconds: float) -> None:
        """An epoch has ended: values by metric, and the time of all its stages."""

    def case_ended(self, status: str, reason: str | None) -> None:
        """The case is written to the record."""
