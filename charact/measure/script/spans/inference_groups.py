"""Slices of predictions in groups, each an iteration if it holds a forward: a batch, and what is made of it.

A group goes from a fetch to the next; where none is fetched, from a model's forward to its next. That a loader has no
further batch counts as a fetch: some fetch a batch ahead, as those of training frameworks do to know which is the last.
Batches that the program said it goes through (their owners are negative) begin groups even where nothing is made of
them. A training that follows a validation without a fetch of its own begins a group, too.
"""

from collections.abc import Iterable, Iterator

from charact.measure.script.spans.recorder import Kind, Slice

FETCHES = frozenset({Kind.FETCH, Kind.EXHAUSTED})


class Models:
    """What is known of the models by their forwards so far."""

    def __init__(self) -> None:
        self.trained: set[int] = set()
        """Ran with gradients."""
        self._in_training_mode: set[int] = set()
        """Ran so in training mode."""

    def take(self, forward: Slice) -> None:
        """Learn of a forward."""
        if forward.grad:
            self.trained.add(forward.owner)
            if forward.training:
                self._in_training_mode.add(forward.owner)

    def predicts(self, forward: Slice) -> bool:
        """Whether a forward may only predict: by its gradients, or by the mode of a model that is trained in another.

        So a validation that forgets to turn gradients off is one all the same.
        """
        return not forward.grad or (not forward.training and forward.owner in self._in_training_mode)


class Grouping:
    """Cuts slices into groups.

    Args:
        models: what is known of them.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    def groups(self, slices: Iterable[Slice]) -> Iterator[list[Slice]]:
        """The groups, in order of time; where a program says that iterations end is no part of them."""
        group: list[Slice] = []
        for one in slices:
            if one.kind is Kind.END:
                continue
            if group and self._begins(group, one):
                yield group
                group = []
            group.append(one)
        if group:
            yield group

    def _begins(self, group: list[Slice], one: Slice) -> bool:
        if one.phase is not None and (one.phase, one.start_ns) == (group[-1].phase, group[-1].end_ns):
            return False  # the rest of a named phase
        if one.kind is Kind.EXHAUSTED:
            return group[-1].kind is not Kind.EXHAUSTED
        if one.kind is Kind.FETCH and one.owner < 0:
            return any(other.kind is not Kind.FETCH or other.owner == one.owner for other in group)
        if one.kind is Kind.FETCH:
            # A fetch without an owner begins to go through a loader, such as after a look at its first batch.
            return any(other.kind is not Kind.FETCH or (other.owner and not one.owner) for other in group)
        forwards = [other for other in group if other.kind is Kind.FORWARD]
        if not forwards or not forwards[-1].ends:  # an inner span cuts a forward in two
            return False
        if one.kind is Kind.FORWARD and not self._models.predicts(one) and all(
                self._models.predicts(other) and not other.training and other.owner in self._models.trained
                for other in forwards):
            return True
        if group[0].kind in FETCHES:
            return False
        return one.kind is Kind.COPY or (one.kind is Kind.FORWARD and one.owner == forwards[0].owner)
