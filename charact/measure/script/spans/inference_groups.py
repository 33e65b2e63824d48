"""Groups of inference slices: each group with a forward is an iteration.

A fetch begins a new group; without fetches, a copy to the device or the model's next forward does, or in a program
without training the forwards that `inference_starts` finds. This includes a fetch that finds no batch, because some
training frameworks fetch one batch ahead to recognize the last one. Each batch of `Profiler.iterate` (negative owner
ID) begins a group even if no forward follows.

Training also begins a group if it follows a validation without a loader, or whose loader is exhausted, or forwards of
other models that the first training did without. If a batch was
fetched for a prediction of the trained model and no other for the training that follows, the prediction is part of the
training: its outputs may be the targets, as in pseudo-labeling.
"""

from collections.abc import Iterable, Iterator, Sequence, Set

from charact.measure.script.spans.iterations import FETCHES
from charact.measure.script.spans.recorder import Kind, Slice


class Models:
    """Models that were trained so far, found from their forwards."""

    def __init__(self) -> None:
        self.trained: set[int] = set()
        """Models that ran with gradients."""
        self._in_training_mode: set[int] = set()
        """Models that ran with gradients in training mode."""
        self._teachers: set[int] = set()
        """Models that ran without gradients in the first iteration of any optimizer."""
        self._optimizers: set[int] = set()

    def take_training(self, slices: Sequence[Slice]) -> None:
        """Take an iteration of training into account; only the first one of each optimizer matters."""
        optimizers = {one.owner for one in slices if one.kind is Kind.STEP}
        if optimizers - self._optimizers:
            self._optimizers |= optimizers
            self._teachers |= {one.owner for one in slices if one.kind is Kind.FORWARD and not one.grad}

    def are_new(self, forwards: Iterable[Slice]) -> bool:
        """Return whether all forwards are of models that no first training ran without gradients: it needs none."""
        return bool(self._optimizers) and not any(one.grad or one.owner in self._teachers for one in forwards)

    def take(self, forward: Slice) -> None:
        """Take a forward into account."""
        if forward.grad:
            self.trained.add(forward.owner)
            if forward.training:
                self._in_training_mode.add(forward.owner)

    def is_inference(self, forward: Slice) -> bool:
        """Return whether a forward may be inference: without gradients, or in eval mode.

        A forward in eval mode with gradients is inference only if the model has run with gradients in training mode. It
        is then a validation that does not turn off gradients.
        """
        return not forward.grad or (not forward.training and forward.owner in self._in_training_mode)


class Grouping:
    """Splits slices into groups, each a possible iteration.

    Args:
        models: models that were trained so far.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    def groups(self, slices: Iterable[Slice], starts_ns: Set[int] | None = None) -> Iterator[list[Slice]]:
        """Yield the groups in order of time; drop slices that mark the end of an iteration.

        Args:
            slices: to split.
            starts_ns: when the forwards start that begin a group if nothing is fetched; None: each of the same model.
        """
        group: list[Slice] = []
        forwards: list[Slice] = []  # those of the group
        for one in slices:
            if one.kind is Kind.END:
                continue
            if group and self._begins(group, forwards, one, starts_ns):
                yield group
                group, forwards = [], []
            group.append(one)
            if one.kind is Kind.FORWARD:
                forwards.append(one)
        if group:
            yield group

    def _begins(self, group: list[Slice], forwards: list[Slice], one: Slice, starts_ns: Set[int] | None) -> bool:
        if one.phase is not None and (one.phase, one.start_ns) == (group[-1].phase, group[-1].end_ns):
            return False  # continues a phase that the program named
        if one.kind is Kind.EXHAUSTED:
            return group[-1].kind is not Kind.EXHAUSTED
        if one.kind is Kind.FETCH and one.owner < 0:
            return any(other.kind is not Kind.FETCH or other.owner == one.owner for other in group)
        if one.kind is Kind.FETCH:
            # A fetch without an owner starts a new loop over a loader, such as after inspecting its first batch.
            return any(other.kind is not Kind.FETCH or (other.owner and not one.owner) for other in group)
        if not forwards or not forwards[-1].ends:  # an inner span splits a forward
            return False
        if group[0].kind is not Kind.FETCH and self._begins_training(one) and self._are_apart(forwards, one):
            return True
        if group[0].kind in FETCHES:
            return False
        if one.kind is Kind.FORWARD:
            return one.owner == forwards[0].owner if starts_ns is None else one.start_ns in starts_ns
        return one.kind is Kind.COPY

    def _are_apart(self, forwards: list[Slice], one: Slice) -> bool:
        """Return whether forwards without a batch of their own are no part of the training that a slice begins.

        In training mode, they may make its inputs, unless it begins with the step that calls the training's closure.
        """
        has_closure = one.kind is Kind.STEP and not one.ends
        return self._models.are_new(forwards) or all(
            self._models.is_inference(other) and (has_closure or not other.training)
            and other.owner in self._models.trained for other in forwards)

    def _begins_training(self, one: Slice) -> bool:
        """Return whether training may begin with a slice: a forward with gradients, zeroed gradients, or a step."""
        if one.kind is Kind.FORWARD:
            return not self._models.is_inference(one)
        return one.kind in (Kind.UPDATE, Kind.STEP) and one.begins
