"""A captured model: the operator calls of one forward pass, and the tensors between them.

A value is a tensor, identified by an index. Layers compute values; the other values are leaves: inputs, weights,
buffers, constants.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec

from charact.core.errors import UserError

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Json = Any
"""A JSON value. In layer arguments, a dict encodes what JSON cannot hold: see `Layer.args`."""

LEAF_KINDS = ("input", "weight", "buffer", "constant")
PRIVATE_KINDS = ("weight", "buffer", "constant")
"""Leaves whose values must not enter a suite, and neither must values computed from them alone."""

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "complex64": 8, "complex128": 16, "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
}
"""Bytes of one element, by dtype."""


class CaptureError(UserError):
    """A model cannot be captured; the message names the operator or the line of the model's code."""


@dataclass(frozen=True)
class TensorType:
    """Dtype, shape and strides of a tensor."""

    dtype: str
    """PyTorch's name without the module: `float32`."""
    shape: tuple[Count, ...]
    stride: tuple[Count, ...]

    @property
    def num_elements(self) -> int:
        """Return the number of elements of the shape."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the elements; the storage of a view with gaps or of an expanded tensor differs."""
        return self.num_elements * ITEM_BYTES[self.dtype]

    @property
    def storage_elements(self) -> int:
        """Return the number of storage elements from the first to the last element."""
        return 1 + sum((length - 1) * step for length, step in zip(self.shape, self.stride, strict=True)) \
            if self.num_elements else 0


@dataclass(frozen=True)
class Layer:
    """One ATen call."""

    operator: Annotated[str, msgspec.Meta(pattern=r"^[^.]*\.[^.]*\.[^.]*$")]
    """Name with its overload: `aten.conv2d.default`."""
    args: list[Json]
    """Literals; `{"value": n}` is value n, `{"dtype": "float32"}`, `{"memory_format": "channels_last"}`,
    `{"layout": "strided"}`, `{"device": true}` (the device it runs on), `{"float": "inf"}` (or -inf, nan),
    `{"complex": [re, im]}`. Lists may nest."""
    kwargs: dict[str, Json]
    outputs: tuple[Count | None, ...]
    """Values that it computes; None for a result that is not a tensor."""
    several: bool
    """Whether it returns a tuple or list."""
    module: str = ""
    """Qualified name of the running module, "" outside of one. Private: not part of a suite."""
    writes: tuple[int, ...] = ()
    """Values that it changes in place; recorded by the capture, not stored in a suite."""

    @property
    def inputs(self) -> list[int]:
        """Return the values that it reads, in the order of its arguments, with repeats."""
        return [*_values_in(self.args), *_values_in(list(self.kwargs.values()))]

    def renamed(self, index_of: Callable[[int], int]) -> "Layer":
        """Return the layer with the index of each value in its arguments replaced."""
        return replace(self, args=_renamed(self.args, index_of),
                       kwargs={name: _renamed(each, index_of) for name, each in self.kwargs.items()})

    @property
    def gives_number(self) -> bool:
        """Return whether it returns a number to the model's code, instead of a tensor."""
        return self.outputs == (None,)


@dataclass(frozen=True)
class Update:
    """An optimizer's update of one parameter."""

    optimizer: str
    """Name of the class in torch.optim."""
    options: dict[str, Json]
    type: TensorType


@dataclass
class CapturedModel:
    """One forward pass (in training with its loss) as layers in execution order."""

    types: dict[int, TensorType]
    leaves: dict[int, str]
    """Kind of each value that no layer computes: one of `LEAF_KINDS`."""
    layers: list[Layer]
    outputs: list[int]
    requires_grad: frozenset[int]
    """Values that carry a gradient; empty in inference."""
    views: dict[int, int]
    """Values that share an earlier value's storage, with the first value of that storage."""
    num_module_calls: int
    """Calls of `nn.Module.__call__` in one forward pass."""
    updates: list[Update]
    """In training: one update for each parameter."""
    num_parameters: int
    notes: list[str] = field(default_factory=list)
    """Notes for the user."""
    tensors: dict[int, Any] = field(default_factory=dict, repr=False)
    """Tensors of the leaves."""
    samples: dict[int, Json] = field(default_factory=dict, repr=False)
    """Value distribution of each value: see `value_distributions`."""


def type_of(tensor: Any) -> TensorType:
    """Return the type of a PyTorch tensor."""
    return TensorType(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride())


def _renamed(thing: Json, index_of: Callable[[int], int]) -> Json:
    if isinstance(thing, (list, tuple)):
        return [_renamed(each, index_of) for each in thing]
    if isinstance(thing, dict) and "value" in thing:
        return {"value": index_of(thing["value"])}
    return thing


def _values_in(thing: Json) -> list[int]:
    """Return the values that an argument refers to."""
    if isinstance(thing, dict):
        return [thing["value"]] if "value" in thing else []
    if isinstance(thing, list):
        return [value for each in thing for value in _values_in(each)]
    return []
