"""Inputs of frozen models that come again: their outputs could be kept. Imports no torch when loaded."""

import sys
import weakref
from collections.abc import Sequence
from typing import Any

_MOST_CALLS, _MOST_ROWS, _MOST_ELEMENTS = 2_000, 128, 1_024
"""Largest numbers of calls of a model, of rows of a call, and of elements of a row that are compared."""
_MOST_TENSORS, _MOST_MODELS = 4, 20
_NUM_WEIGHTS, _NUM_ELEMENTS = 8, 16
"""Numbers of parameters, and of elements of each, that are compared to recognize weights that change."""


class FrozenModels:
    """Compares the rows of the inputs of models that run without gradients, such as a teacher or an encoder.

    A row counts as repeated if an earlier call had a row with the same elements at 1,024 places, by two sums of them.

    *Error*: rows that differ only between these places count as equal. Of a call with more than 128 rows, only these
    are compared, so that fewer rows count as repeated.
    """

    def __init__(self) -> None:
        self._models: dict[int, _Model | None] = {}
        """Models by owner ID; None for those that are not frozen."""
        self._called_once: set[int] = set()
        """Models that were called without gradients: the second call may have some, as that of a GAN's generator."""

    def call(self, owner: int, module: Any, tensors: Sequence[Any]) -> None:
        """Note the input tensors of a call if its model computes no gradients for its weights. Never fails."""
        if owner in self._models and self._models[owner] is None:
            return
        try:
            self._call(owner, module, tensors)
        except Exception:  # the program's tensors and modules may do anything
            self._models[owner] = None

    def rows(self) -> list[tuple[int, int, int]]:
        """Return owner ID, number of compared rows and of repeated rows of each model whose weights did not change."""
        rows = []
        for owner, model in self._models.items():
            try:
                if model is not None and model.num_calls > 1 and (repeated := model.repeated()) is not None:
                    rows.append((owner, *repeated))
            except Exception:  # see `call`
                continue
        return rows

    def _call(self, owner: int, module: Any, tensors: Sequence[Any]) -> None:
        torch = sys.modules["torch"]
        is_one_too_many = owner not in self._models and len(self._models) >= _MOST_MODELS
        trains = torch.is_grad_enabled() and any(each.requires_grad for each in module.parameters())
        if trains or not tensors or is_one_too_many:
            self._models[owner] = None
            return
        if owner not in self._called_once:
            self._called_once.add(owner)
            return
        if torch._C._autograd._profiler_enabled():  # a pass measures: operators of charact must not be among its own
            return
        with torch.no_grad():
            model = self._models.get(owner)
            if model is None:
                model = _Model(torch, module)
                self._models[owner] = model if model.has_weights else None
            if model.has_weights and model.num_calls < _MOST_CALLS:
                model.add(tensors)


class _Model:
    """A frozen model: a sample of its weights at its first call, and what is known of the rows of its inputs."""

    def __init__(self, torch: Any, module: Any) -> None:
        self._torch, self._module = torch, weakref.ref(module)
        self._weights = _sample(module)
        self.has_weights = bool(self._weights)
        self.num_calls = 0
        self._num_rows = self._num_repeated = 0
        self._seen: set[int] = set()
        self._on_device: list[Any] = []
        """Fingerprints that were not read yet: the program must not wait for its device."""

    def add(self, tensors: Sequence[Any]) -> None:
        """Compare the rows of a call with those of earlier ones."""
        self.num_calls += 1
        fingerprints = _fingerprints(self._torch, tensors)
        if fingerprints.device.type == "cpu":  # tensors that live on would leave holes in the program's heap
            self._compare(fingerprints)
        else:
            self._on_device.append(fingerprints)

    def repeated(self) -> tuple[int, int] | None:
        """Return the numbers of rows of all inputs and of those that an earlier call had; None if weights changed."""
        module = self._module()
        if module is None or not all(map(self._torch.equal, self._weights, _sample(module))):
            return None
        for fingerprints in self._on_device:
            self._compare(fingerprints)
        self._on_device = []
        return self._num_rows, self._num_repeated

    def _compare(self, fingerprints: Any) -> None:
        rows = [hash(tuple(row)) for row in fingerprints.tolist()]
        self._num_rows += len(rows)
        self._num_repeated += sum(row in self._seen for row in rows)
        self._seen.update(rows)


def _sample(module: Any) -> list[Any]:
    """Return copies of some elements of some of a module's parameters."""
    parameters = list(module.parameters())
    chosen = parameters[::max(1, len(parameters) // _NUM_WEIGHTS)]
    return [each.detach().flatten()[::max(1, each.numel() // _NUM_ELEMENTS)].clone() for each in chosen]


def _fingerprints(torch: Any, tensors: Sequence[Any]) -> Any:
    """Return a tensor of shape [rows, fingerprint]: two weighted sums of elements of each row of each input.

    It stays on the device, so that the program does not wait for it.
    """
    num_rows = len(tensors[0])
    columns = []
    for tensor in tensors[:_MOST_TENSORS]:
        if len(tensor) != num_rows:
            continue
        rows = tensor[:_MOST_ROWS].reshape(min(num_rows, _MOST_ROWS), -1)
        elements = rows[:, ::max(1, rows.shape[1] // _MOST_ELEMENTS)][:, :_MOST_ELEMENTS].double()
        weights = torch.arange(1.0, elements.shape[1] + 1, dtype=torch.float64, device=tensor.device).sqrt_()
        columns += [elements.sum(1), elements @ weights]
    return torch.stack(columns, 1)
