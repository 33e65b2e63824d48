"""A brick: a short sequence of operators with the types of what it reads, known by a hash of what it computes.

Names of models and modules, the order of pieces and the values of weights are no part of it.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any, Literal

from charact.bricks.captured_graph import CapturedModel, Json, Layer, TensorType, Update
from charact.bricks.cut import Piece

Kind = Literal["sequence", "update", "gradient_sum"]

_UPDATE = "charact.update"
_GRADIENT = {"weight": "normal"}
"""How gradients are drawn: as weights are."""


@dataclass(frozen=True)
class BrickInput:
    """A tensor that a brick reads and does not make."""

    kind: str
    """`activation`, `weight`, `buffer` or `constant`; a model's own input is an activation."""
    type: TensorType
    requires_grad: bool
    sample: Json
    """How its values are to be drawn; no part of the identity."""
    repeated: int | None = None
    """Earlier input whose storage it shares; None where it has its own."""


@dataclass(frozen=True)
class Brick:
    """Layers with numbered values: the inputs in the order in which they are read, then what each layer makes."""

    id: str
    kind: Kind
    mode: str
    precision: str
    """`tf32`, or `fp32` of all others: what autocast adds are layers, and types are those of the inputs."""
    inputs: tuple[BrickInput, ...]
    layers: tuple[Layer, ...]
    outputs: tuple[int, ...]
    """Values that others read, or that are results of the model."""
    written: frozenset[int]
    """Inputs that it changes in place."""
    context_bytes: int
    """What the first model that it was found in touches between two uses of its weights: see `context`. No part of the
    identity."""

    @property
    def layer_types(self) -> list[str]:
        """Names of its operators, without namespace and overload."""
        return [layer.operator.split(".")[1] for layer in self.layers]

    @property
    def num_layers(self) -> int:
        """Operators that it calls."""
        return len(self.layers)

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights and buffers that it reads."""
        return sum(each.type.num_bytes for each in self.inputs if each.kind in ("weight", "buffer"))


def brick_of(captured: CapturedModel, piece: Piece, mode: str, precision: str, context_bytes: int) -> Brick:
    """The brick that stands at a piece of a model, whose weights are so far apart.

    Which inputs it writes to is told by the operators' schemas, and by which values the model saw share a storage.
    """
    numbers = {value: number for number, value in enumerate(piece.inputs)}
    layers = tuple(_renumbered(captured.layers[index], numbers) for index in piece.layers)
    storages = [captured.views.get(value, value) for value in piece.inputs]
    written = {captured.views.get(value, value) for index in piece.layers for value in _writes(captured.layers[index])}
    inputs = tuple(
        BrickInput(
            kind=_kind(captured, value), type=captured.types[value],
            requires_grad=value in captured.requires_grad, sample=captured.samples[value],
            repeated=next((earlier for earlier in range(number) if storages[earlier] == storages[number]), None))
        for number, value in enumerate(piece.inputs)
    )  # fmt: skip
    outputs = tuple(sorted(numbers[value] for value in piece.outputs))
    places = frozenset(number for number, storage in enumerate(storages) if storage in written)
    return identified(Brick("", "sequence", mode, precision, inputs, layers, outputs, places, context_bytes))


def _kind(captured: CapturedModel, value: int) -> str:
    kind = captured.leaves.get(value, "activation")
    return "activation" if kind == "input" else kind


def runs_as(precision: str) -> str:
    """Precision that bricks of a model in that precision run in."""
    return "tf32" if precision == "tf32" else "fp32"


def _writes(layer: Layer) -> list[int]:
    from charact.bricks.aten import written_values  # here, since it imports torch and reading bricks does not

    return written_values(layer)


def leaves_bytes(captured: CapturedModel, *kinds: str) -> int:
    """Bytes of a model's leaves of some kinds."""
    held = (value for value, kind in captured.leaves.items() if kind in kinds)
    return sum(captured.types[value].num_bytes for value in held)


def update_brick(update: Update, precision: str, context: int) -> Brick:
    """An optimizer's step for one parameter, in a model whose weights and results are that many bytes."""
    layer = Layer(f"{_UPDATE}.default", [{"value": 0}],
                  {"optimizer": update.optimizer, "options": dict(update.options)}, (), False)  # fmt: skip
    weight = BrickInput("weight", update.type, False, {"weight": "normal"})
    return identified(Brick("", "update", "train", precision, (weight,), (layer,), (), frozenset({0}), context))


def gradient_sum_brick(of: TensorType, precision: str, context: int) -> Brick:
    """The sum of two gradients of a value that has several readers: n readers need n - 1 of them."""
    layer = Layer("aten.add.Tensor", [{"value": 0}, {"value": 1}], {}, (2,), False)
    gradient = BrickInput("activation", of, False, _GRADIENT)
    return identified(Brick("", "gradient_sum", "infer", precision, (gradient, gradient), (layer,), (2,), frozenset(),
                             context))  # fmt: skip


def _renumbered(layer: Layer, numbers: dict[int, int]) -> Layer:
    """The layer in a brick's numbers, which what it makes is added to."""
    args, kwargs = _with_numbers(layer.args, numbers), _with_numbers(layer.kwargs, numbers)
    outputs = tuple(None if value is None else numbers.setdefault(value, len(numbers)) for value in layer.outputs)
    return Layer(layer.operator, args, kwargs, outputs, layer.several)


def _with_numbers(thing: Json, numbers: dict[int, int]) -> Json:
    if isinstance(thing, dict):
        return {key: numbers[each] if key == "value" else _with_numbers(each, numbers) for key, each in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [_with_numbers(each, numbers) for each in thing]
    return thing


def canonical(thing: Json) -> str:
    """JSON in one spelling."""
    return json.dumps(thing, sort_keys=True, separators=(",", ":"), allow_nan=False)


def identified(brick: Brick) -> Brick:
    """The brick with the id that its content gives it."""
    return replace(brick, id=identity(brick))


def identity(brick: Brick) -> str:
    """16 hexadecimal digits of what the brick computes.

    Two inputs that share a storage are told from two that do not only where something is written in place.
    """
    entry = content(brick)
    for each in entry["inputs"]:
        del each["sample"]
        if not brick.written:
            del each["repeated"]
    return hashlib.sha256(canonical(entry).encode()).hexdigest()[:16]


def content(brick: Brick) -> dict[str, Any]:
    """The brick as JSON, but for which inputs it writes to and how much its model touches."""
    return {
        "kind": brick.kind, "mode": brick.mode, "precision": brick.precision,
        "inputs": [_input_to_json(each) for each in brick.inputs],
        "layers": [{"operator": layer.operator, "args": layer.args, "kwargs": layer.kwargs,
                    "outputs": list(layer.outputs), "several": layer.several} for layer in brick.layers],
        "outputs": list(brick.outputs),
    }  # fmt: skip


def _input_to_json(each: BrickInput) -> dict[str, Json]:
    return {"kind": each.kind, "dtype": each.type.dtype, "shape": list(each.type.shape),
            "stride": list(each.type.stride), "requires_grad": each.requires_grad, "sample": each.sample,
            "repeated": each.repeated}  # fmt: skip
