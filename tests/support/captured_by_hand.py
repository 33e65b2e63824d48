"""Captured models that are written by hand, and an interpreter of captured models that knows nothing of bricks."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from charact.bricks.aten import literal, operator_of, written_values
from charact.bricks.suite.captured_graph import CapturedModel, Json, Layer, TensorType, Update
from charact.bricks.suite.composition import Configuration
from charact.bricks.suite.layer_sequences import Segment

CPU = torch.device("cpu")
Run = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Value:
    """A value of a model that is being written."""

    number: int


@dataclass
class ByHand:
    """A captured model that grows layer by layer; each is run at once, which tells its types and shared storages."""

    module: str = "features"
    tensors: dict[int, Tensor] = field(default_factory=dict)
    leaves: dict[int, str] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)

    def leaf(self, kind: str, tensor: Tensor) -> Value:
        self.leaves[len(self.tensors)] = kind
        return self._value(tensor)

    def weight(self, *shape: int) -> Value:
        return self.leaf("weight", torch.randn(shape))

    def add(self, operator: str, *args: Any, **kwargs: Any) -> Any:
        """Add an ATen call; gives its value, or its values where it makes several."""
        written, named = [_json(each) for each in args], {name: _json(each) for name, each in kwargs.items()}
        made = called(Layer(f"aten.{operator}", written, named, (), False), self.tensors)
        several = isinstance(made, (tuple, list))
        values = [self._value(each) for each in (made if several else [made])]
        layer = Layer(f"aten.{operator}", written, named, tuple(each.number for each in values), several,
                      f"{self.module}.{len(self.layers)}")
        self.layers.append(replace(layer, writes=tuple(written_values(layer))))
        return values if several else values[0]

    def model(self, *outputs: Value, requires_grad: Sequence[Value] = (), updates: Sequence[Update] = (),
              samples: Json = None) -> CapturedModel:
        first: dict[int, int] = {}
        views = {}
        for number, tensor in self.tensors.items():
            root = first.setdefault(tensor.untyped_storage().data_ptr(), number)
            if root != number:
                views[number] = root
        return CapturedModel(
            types={number: type_of(tensor) for number, tensor in self.tensors.items()}, leaves=dict(self.leaves),
            layers=list(self.layers), outputs=[value.number for value in outputs],
            requires_grad=frozenset(value.number for value in requires_grad), views=views, num_module_calls=3,
            updates=list(updates), num_parameters=10,
            tensors={number: self.tensors[number] for number in self.leaves},
            samples=dict.fromkeys(self.tensors, samples or {"quantiles": [-1.0, 0.5]}))  # fmt: skip

    def _value(self, tensor: Tensor) -> Value:
        self.tensors[len(self.tensors)] = tensor
        return Value(len(self.tensors) - 1)


def _json(thing: Any) -> Json:
    if isinstance(thing, Value):
        return {"value": thing.number}
    return [_json(each) for each in thing] if isinstance(thing, list) else thing


def type_of(tensor: Tensor) -> TensorType:
    return TensorType(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride())


def called(layer: Layer, values: dict[int, Tensor]) -> Any:
    """What a layer gives for values, called through `torch.ops`."""
    def of(thing: Json) -> Any:
        if isinstance(thing, list):
            return [of(each) for each in thing]
        return values[thing["value"]] if isinstance(thing, dict) and "value" in thing else literal(thing, CPU)

    return operator_of(layer.operator)(*map(of, layer.args), **{name: of(each) for name, each in layer.kwargs.items()})


def run_layer(layer: Layer, values: dict[int, Tensor]) -> None:
    """Run a layer, and add what it makes to the values."""
    made = called(layer, values)
    made = made if layer.several else [made]
    values.update({number: each for number, each in zip(layer.outputs, made, strict=True) if number is not None})


def check_chained(captured: CapturedModel, pieces: Sequence[Segment], run: Sequence[Run]) -> list[Tensor]:
    """Run bricks one behind the other, each piece's layers beside it; gives the model's outputs as bricks make them.

    Each piece with the same random numbers.
    """
    with torch.no_grad():
        ours, theirs = leaves_of(captured), leaves_of(captured)
        for number, (piece, function) in enumerate(zip(pieces, run, strict=True)):
            torch.manual_seed(number)
            made = function([ours[value] for value in piece.inputs])
            ours.update(zip(piece.outputs, made, strict=True))
            torch.manual_seed(number)
            for index in piece.layers:
                run_layer(captured.layers[index], theirs)
            for value in piece.outputs:
                assert same(ours[value], theirs[value]), f"value {value} of piece {number} differs"
        return [ours[value] for value in captured.outputs]


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def leaves_of(captured: CapturedModel) -> dict[int, Tensor]:
    """The leaves; what a forward pass may change is copied, and shares storages as before."""
    weights = {value: captured.tensors[value] for value, kind in captured.leaves.items() if kind == "weight"}
    others = {value: tensor for value, tensor in captured.tensors.items() if value not in weights}
    return weights | copy.deepcopy(others)


def run_whole(captured: CapturedModel) -> list[Tensor]:
    """The model's outputs, layer by layer in the order in which they were captured."""
    values = leaves_of(captured)
    with torch.no_grad():
        for layer in captured.layers:
            run_layer(layer, values)
    return [values[value] for value in captured.outputs]


def configuration(name: str = "hand", mode: str = "infer", batch_size: int | None = 2,
                  precision: str = "fp32") -> Configuration:
    return Configuration(f"{name}-8-b{batch_size}-{mode}-{precision}", name, "base", 8, batch_size, mode, precision)


def branches(stride: int = 1, padding: int = 1, eps: float = 1e-5, training: bool = False, dtype: str = "float32",
             module: str = "features", seed: int = 0) -> CapturedModel:
    """Convolution, norm and rectifier; two convolutions that read it; their sum, and a rectifier in place."""
    torch.manual_seed(seed)
    made = ByHand(module)
    of = getattr(torch, dtype)
    x = made.leaf("input", torch.randn(2, 4, 8, 8).to(of))
    weights = [made.leaf("weight", torch.randn(4, 4, 3, 3).to(of)) for _ in range(3)]
    scale, shift = made.leaf("weight", torch.ones(4)), made.leaf("weight", torch.zeros(4))
    mean, variance = made.leaf("buffer", torch.zeros(4)), made.leaf("buffer", torch.ones(4))
    y = made.add("conv2d.default", x, weights[0], None, [stride, stride], [padding, padding])
    y = made.add("batch_norm.default", y, scale, shift, mean, variance, training, 0.1, eps, False)
    y = made.add("relu_.default", y)
    left = made.add("conv2d.default", y, weights[1], None, [1, 1], [1, 1])
    right = made.add("conv2d.default", y, weights[2], None, [1, 1], [1, 1])
    right = made.add("tanh.default", right)
    total = made.add("add.Tensor", left, right)
    out = made.add("relu_.default", total)
    grads = [Value(number) for number, tensor in made.tensors.items() if training and number not in (x.number,
             mean.number, variance.number) and tensor.is_floating_point()]  # fmt: skip
    updates = [Update("SGD", {"lr": 0.1, "momentum": 0.9}, type_of(made.tensors[each.number]))
               for each in [*weights, scale, shift]] if training else []  # fmt: skip
    return made.model(out, requires_grad=grads, updates=updates)
