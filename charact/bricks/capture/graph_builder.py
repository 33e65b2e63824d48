"""Draft of a captured model: the operators as they were called, and the leaf tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch._ops import OpOverload

from charact.bricks.capture.arguments import encoded_call, operator_name
from charact.bricks.captured_graph import CaptureError, Layer

SAME = frozenset(["aten.detach.default", "aten.detach_.default", "aten.alias.default", "aten.lift_fresh.default"])
"""Operators that return their input; they matter only for gradients."""


@dataclass
class Draft:
    """Layers in execution order. A layer's output may be read only by the model's code, or never."""

    layers: list[Layer] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=dict)
    """Kind of each leaf."""
    tensors: dict[int, Tensor] = field(default_factory=dict)
    """The leaves' tensors."""
    outputs: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    """Values that the program computes in addition to the outputs; the layers that compute them are kept."""
    without_gradient: set[int] = field(default_factory=set)
    """Values computed while gradients were off."""
    num_values: int = 0

    def new_value(self) -> int:
        """Return the next value index."""
        self.num_values += 1
        return self.num_values - 1

    def leaf(self, kind: str, tensor: Tensor) -> int:
        """Add a leaf and return its value index."""
        value = self.new_value()
        self.kinds[value], self.tensors[value] = kind, tensor
        return value

    def live_layers(self) -> list[Layer]:
        """Return the layers without those of `SAME` whose output nobody reads."""
        read = {*self.outputs, *self.kept}
        live = []
        for layer in reversed(self.layers):
            if layer.operator not in SAME or not read.isdisjoint(layer.outputs):
                live.append(layer)
                read.update(layer.inputs)
        return live[::-1]

    def add(self, operator: OpOverload, args: Any, kwargs: Mapping[str, Any], result: Any, *, index_of: Any,
            value_type: type, module: str, call: int = 0) -> list[int | None]:
        """Add the layer of one call.

        Args:
            operator: the called operator; assertions are skipped.
            args: its positional arguments.
            kwargs: its keyword arguments.
            result: its result, real or fake.
            index_of: returns the index of a value of type `value_type`.
            value_type: type of the objects that represent values in the arguments.
            module: qualified name of the running module.
            call: index of the leaf module's call.

        Returns:
            Value indices of the result's tensors; None for a result that is not a tensor.

        Raises:
            CaptureError: the operator or an argument cannot be stored.
        """
        name = operator_name(operator)
        try:
            args, kwargs = encoded_call(operator, args, kwargs, index_of, value_type)
        except CaptureError as error:
            raise CaptureError(f"its operator {name} {error}") from error
        several = isinstance(result, (list, tuple))
        outputs = [self.new_value() if isinstance(each, Tensor) else None for each in (result if several else [result])]
        if not name.startswith("aten._assert"):
            self.layers.append(Layer(name, args, kwargs, tuple(outputs), several, module, call))
        return outputs
