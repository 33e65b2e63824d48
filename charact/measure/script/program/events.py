"""Buffer of a watched program's events that are not spans, until they are written as notes. No torch in here."""

from time import perf_counter_ns
from typing import Any

from charact.measure.script.program.frozen_models import FrozenModels
from charact.measure.script.program.memory_samples import MemorySamples

MAX_EVENTS = 10_000
"""Largest number of events of a kind that are recorded."""
MAX_LOADERS = 100
_MIN_COLLECTION_NS = 1_000_000
_MAX_TENSORS = 32
"""Largest number of tensors whose shapes are compared in a call of a model."""


class ProgramEvents:
    """Buffer of changed input shapes, starts of loaders, garbage collections and other events.

    The methods run inside the program's iterations, and take a few microseconds.
    """

    def __init__(self) -> None:
        self.tensor_class: type[Any] | tuple[()] = ()
        """Class of tensors; none until PyTorch is imported."""
        self._last_shapes: dict[int, list[Any]] = {}
        """Shapes of the inputs of each model's latest call."""
        self._shapes: list[tuple[int, int, list[Any]]] = []
        self._num_shapes = 0
        self.any_optimizer = False
        """Whether the program has created an optimizer."""
        self._frozen = FrozenModels()
        self._epochs: list[tuple[int, ...]] = []
        self._num_epochs = 0
        self._loaders: list[dict[str, Any]] = []
        self._num_loaders = 0
        self.memory = MemorySamples()
        self._collections: list[tuple[int, int]] = []
        self._num_collections = self._collection_ns = 0
        self._num_backwards = self._num_anomalous = self._num_noted = 0
        self.graph_place: dict[str, Any] | None = None
        """File and line of the first backward with `create_graph=True`."""

    def inputs(self, owner: int, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the shapes of a model's input tensors if they differ from those of its last call.

        In a training, the rows of the inputs of frozen models are compared, too.
        """
        try:
            tensor = self.tensor_class
            if len(args) == 1 and type(args[0]) is tensor and not kwargs:  # most calls; three times as fast
                tensors, shapes = args, [args[0].shape]
            else:
                tensors = self._tensors_of(args, kwargs)
                shapes = [each.shape if type(each) is tensor else _concrete(each.shape) for each in tensors]
            if self.any_optimizer:
                self._frozen.call(owner, module, tensors)
            if not shapes or self._last_shapes.get(owner) == shapes or self._num_shapes >= MAX_EVENTS:
                return
        except Exception:  # such as a nested tensor, which has no sizes
            return
        self._last_shapes[owner] = shapes
        self._num_shapes += 1
        self._shapes.append((perf_counter_ns(), owner, shapes))

    def backward(self, is_anomalous: bool) -> None:
        """Count a backward, and whether it runs under anomaly detection."""
        self._num_backwards += 1
        self._num_anomalous += is_anomalous

    def collection(self, phase: str, _: dict[str, Any]) -> None:
        """Record a long garbage collection. `gc.callbacks` call this at the start and the end of each collection."""
        now_ns = perf_counter_ns()
        if phase == "start":
            self._collection_ns = now_ns
        elif now_ns - self._collection_ns >= _MIN_COLLECTION_NS and self._collection_ns \
                and self._num_collections < MAX_EVENTS:
            self._num_collections += 1
            self._collections.append((self._collection_ns, now_ns))

    def loader(self, number: int, settings: dict[str, Any]) -> None:
        """Record the settings of a loader."""
        if self._num_loaders < MAX_LOADERS:
            self._num_loaders += 1
            self._loaders.append({"note": "loader", "loader": number, "settings": settings})

    def epoch(self, loader: int, begin_ns: int, ready_ns: int, owner: int, fetch_ns: int, end_ns: int) -> None:
        """Record the start of a loader."""
        if self._num_epochs < MAX_EVENTS:
            self._num_epochs += 1
            self._epochs.append((loader, begin_ns, ready_ns, owner, fetch_ns, end_ns))

    def notes(self, *, last: bool = False) -> list[dict[str, Any]]:
        """Return the events since the last call as notes.

        Args:
            last: whether the program ends. Before, the number of backwards is returned only the first time, or if any
                ran under anomaly detection.
        """
        notes, self._loaders = self._loaders, []
        if self._shapes:
            notes.append({"note": "input shapes", "rows": self._shapes})
            self._shapes = []
        if self._collections:
            notes.append({"note": "collections", "rows": self._collections})
            self._collections = []
        notes += self.memory.take()
        if self._epochs:
            notes.append({"note": "epochs", "rows": self._epochs})
            self._epochs = []
        if self._num_backwards > self._num_noted and (last or self._num_anomalous or not self._num_noted):
            notes.append({"note": "backwards", "total": self._num_backwards, "anomalous": self._num_anomalous,
                          "create_graph": self.graph_place})
            self._num_noted = self._num_backwards
        if last and (frozen := self._frozen.rows()):
            notes.append({"note": "frozen models", "rows": frozen})
        return notes

    def _tensors_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the tensors among arguments, including those in lists, tuples and dictionaries."""
        tensor, tensors = self.tensor_class, list[Any]()
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, tensor):
                tensors.append(value)
            elif isinstance(value, (list, tuple, dict)):
                inner = value.values() if isinstance(value, dict) else value
                tensors += [each for each in list(inner)[:_MAX_TENSORS] if isinstance(each, tensor)]
        return tuple(tensors[:_MAX_TENSORS])


def _concrete(shape: Any) -> Any:
    """Return the shape of a tensor of a subclass.

    Raises:
        ValueError: a length is symbolic. During an export, comparing it would fix its value.
    """
    if any(type(length) is not int for length in shape):
        raise ValueError("symbolic shape")
    return shape
