"""What was seen of a model before it is put in order: the operators as they came, and the tensors they began with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch._ops import OpOverload

from charact.bricks.capture.arguments import encoded_call, operator_name
from charact.bricks.captured_graph import CaptureError, Layer

SAME = frozenset(["aten.detach.default", "aten.detach_.default", "aten.alias.default", "aten.lift_fresh.default"])
"""Operators that give what they are given; only for gradients it is not the same."""


@dataclass
class Draft:
    """Layers in the order in which they ran. What a layer makes may be for the model's code alone, or for nobody."""

    layers: list[Layer] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=dict)
    """Kind of each leaf."""
    tensors: dict[int, Tensor] = field(default_factory=dict)
    """The leaves' tensors."""
    outputs: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    """Values that the program computes for something else than the outputs: what makes them is kept."""
    without_gradient: set[int] = field(default_factory=set)
    """Values made where gradients were off."""
    num_values: int = 0

    def new_value(self) -> int:
        """The next number."""
        self.num_values += 1
        return self.num_values - 1

    def leaf(self, kind: str, tensor: Tensor) -> int:
        """Number of a new leaf."""
        value = self.new_value()
        self.kinds[value], self.tensors[value] = kind, tensor
        return value

    def live_layers(self) -> list[Layer]:
        """Layers that took time: all but those that give what they are given to nobody."""
        read = {*self.outputs, *self.kept}
        live = []
        for layer in reversed(self.layers):
            if layer.operator not in SAME or not read.isdisjoint(layer.outputs):
                live.append(layer)
                read.update(layer.inputs)
        return live[::-1]

    def add(self, operator: OpOverload, args: Any, kwargs: Mapping[str, Any], result: Any, *, number: Any,
            refers: type, module: str, call: int = 0) -> list[int | None]:
        """Add the layer of one call.

        Args:
            operator: what was called; one that only checks something is left out.
            args: what it was called with.
            kwargs: likewise, by name.
            result: what it gave, real or fake.
            number: tells which value stands for something of the type `refers`.
            refers: type of what stands for a value in the arguments.
            module: qualified name of the module that ran.
            call: which call of a leaf module that was.

        Returns:
            Numbers of the tensors that it gave, None in the place of what is none.

        Raises:
            CaptureError: the operator or an argument of it cannot be kept.
        """
        name = operator_name(operator)
        try:
            args, kwargs = encoded_call(operator, args, kwargs, number, refers)
        except CaptureError as error:
            raise CaptureError(f"its operator {name} {error}") from error
        several = isinstance(result, (list, tuple))
        outputs = [self.new_value() if isinstance(each, Tensor) else None for each in (result if several else [result])]
        if not name.startswith("aten._assert"):
            self.layers.append(Layer(name, args, kwargs, tuple(outputs), several, module, call))
        return outputs
