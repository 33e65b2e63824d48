"""A captured model: the operators that one forward pass calls, and the tensors that flow between them.

A value is a tensor, known by a number. Values are made by layers or are leaves: inputs, weights, buffers, constants.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from charact.core.errors import UserError

Json = Any
"""What JSON can hold. In arguments of layers a dict stands for what it cannot: see `Layer.args`."""

LEAF_KINDS = ("input", "weight", "buffer", "constant")
PRIVATE_KINDS = ("weight", "buffer", "constant")
"""Those whose values, and what is computed of them alone, stay with the model."""

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "complex64": 8, "complex128": 16, "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
}
"""Bytes of one element, by type."""


class CaptureError(UserError):
    """A model that cannot be captured: the line names the operator, or the line of the model, that stopped it."""


@dataclass(frozen=True)
class TensorType:
    """What a tensor looks like, without its values."""

    dtype: str
    """PyTorch's name without the module: `float32`."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Elements that the shape counts."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of those elements; the storage below a view with gaps, or an expanded one, is of another size."""
        return self.num_elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Layer:
    """One ATen call."""

    operator: str
    """With its overload: `aten.conv2d.default`."""
    args: list[Json]
    """Literals; `{"value": n}` is value n, `{"dtype": "float32"}`, `{"memory_format": "channels_last"}`,
    `{"layout": "strided"}`, `{"device": true}` (where it runs), `{"float": "inf"}` (or -inf, nan),
    `{"complex": [re, im]}`. Lists may nest."""
    kwargs: dict[str, Json]
    outputs: tuple[int | None, ...]
    """Values that it makes; None in the place of what is no tensor."""
    several: bool
    """Whether it gives a tuple or list of them."""
    module: str = ""
    """Qualified name of the module that runs, "" outside of one. Private: no part of a suite."""
    call: int = 0
    """Which call of a leaf module it belongs to, counted from 1; 0 where it belongs to none or nobody counted."""

    @property
    def inputs(self) -> list[int]:
        """Values that it reads, in the order of its arguments; one that is read twice stands twice."""
        return [*_values_in(self.args), *_values_in(list(self.kwargs.values()))]

    @property
    def gives_number(self) -> bool:
        """Whether it gives no tensor but a number, for the model's code to read."""
        return self.outputs == (None,)


@dataclass(frozen=True)
class Update:
    """What an optimizer does to one parameter."""

    optimizer: str
    """Name of its class in torch.optim."""
    options: dict[str, Json]
    type: TensorType


@dataclass
class CapturedModel:
    """One forward pass (in training with its loss) as layers in the order in which they ran."""

    types: dict[int, TensorType]
    leaves: dict[int, str]
    """Values that no layer makes, each with its kind: one of `LEAF_KINDS`."""
    layers: list[Layer]
    outputs: list[int]
    requires_grad: frozenset[int]
    """Values that carry a gradient; empty in inference."""
    views: dict[int, int]
    """Values that share another's storage, and the first value that has it."""
    num_module_calls: int
    """Calls of `nn.Module.__call__` in one forward pass."""
    updates: list[Update]
    """In training: one for each parameter."""
    captured_by: str
    """`export`, `dispatch` or `hooks`."""
    num_parameters: int
    pieces_at_modules: bool = False
    """Whether each call of a leaf module is to be one piece: layers then carry the number of that call."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know, such as why the export failed."""
    tensors: dict[int, Any] = field(default_factory=dict, repr=False)
    """The leaves' real tensors."""
    samples: dict[int, Json] = field(default_factory=dict, repr=False)
    """How values are to be drawn, by value: see `values`."""


def _values_in(thing: Json) -> list[int]:
    """Values that an argument refers to."""
    if isinstance(thing, dict):
        return [thing["value"]] if "value" in thing else []
    if isinstance(thing, list):
        return [value for each in thing for value in _values_in(each)]
    return []
