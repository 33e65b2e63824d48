"""Events in a watched program's iterations that are no spans, until they are written as notes. No torch in here."""

from time import perf_counter_ns
from typing import Any

MAX_EVENTS = 10_000
"""Largest number of events of a kind that are recorded."""
_MAX_TENSORS = 32
"""Largest number of tensors whose shapes are compared in a call of a model."""


class ProgramEvents:
    """Changes of the shapes of models' inputs, and starts of loaders.

    The program waits for all methods, in each iteration: they take a few microseconds.
    """

    def __init__(self) -> None:
        self.tensor_class: type[Any] | tuple[()] = ()
        """Class of tensors; none until PyTorch is imported."""
        self._last_shapes: dict[int, list[Any]] = {}
        """Shapes of the inputs of each model's latest call."""
        self._shapes: list[tuple[int, int, list[Any]]] = []
        self._num_shapes = 0
        self._epochs: list[tuple[int, int, int, int, int]] = []
        self._num_epochs = 0

    def inputs(self, owner: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the shapes of the tensors with which a model is called, if they differ from those of its last call."""
        if self._num_shapes >= MAX_EVENTS:
            return
        try:
            shapes = self._shapes_of(args, kwargs)
            if not shapes or self._last_shapes.get(owner) == shapes:
                return
        except Exception:  # such as a nested tensor, which has no sizes
            return
        self._last_shapes[owner] = shapes
        self._num_shapes += 1
        self._shapes.append((perf_counter_ns(), owner, shapes))

    def epoch(self, loader: int, begin_ns: int, owner: int, fetch_ns: int, end_ns: int) -> None:
        """Record that a loader was started.

        Args:
            loader: ID of the loader.
            begin_ns: time at which the program asked for its iterator.
            owner: owner ID of the iterator.
            fetch_ns: start of the first fetch.
            end_ns: end of the first fetch.
        """
        if self._num_epochs < MAX_EVENTS:
            self._num_epochs += 1
            self._epochs.append((loader, begin_ns, owner, fetch_ns, end_ns))

    def notes(self) -> list[dict[str, Any]]:
        """Return notes of the events since the last call."""
        notes: list[dict[str, Any]] = []
        if self._shapes:
            notes.append({"note": "input shapes", "rows": self._shapes})
            self._shapes = []
        if self._epochs:
            notes.append({"note": "epochs", "rows": self._epochs})
            self._epochs = []
        return notes

    def _shapes_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the shapes of the tensors among arguments, also of those in their lists, tuples and dictionaries."""
        tensor, tensors = self.tensor_class, []
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, tensor):
                tensors.append(value)
            elif isinstance(value, (list, tuple, dict)):
                inner = value.values() if isinstance(value, dict) else value
                tensors += [one for one in list(inner)[:_MAX_TENSORS] if isinstance(one, tensor)]
        return [one.shape if type(one) is tensor else _known(one.shape) for one in tensors[:_MAX_TENSORS]]


def _known(shape: Any) -> Any:
    """Return the shape of a tensor of a class of its own.

    Raises:
        ValueError: a length is symbolic: a comparison would fix it while the program is exported.
    """
    if any(type(length) is not int for length in shape):
        raise ValueError("symbolic shape")
    return shape
