"""Bricks as functions that run: operators of PyTorch, called in order on numbered values.

The source of a function holds numbers that were counted here and names that PyTorch knows, nothing that a file says;
literals are handed over as objects.
"""

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from charact.bricks.aten import check_arguments, literal, operator_of
from charact.bricks.brick import Brick
from charact.bricks.captured_graph import Json, Layer
from charact.core.errors import UserError

BrickFunction = Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]

_DIRECT = frozenset([
    "abs", "adaptive_avg_pool2d", "add", "add_", "addmm", "avg_pool2d", "batch_norm", "bmm", "cat", "chunk", "clamp",
    "clone", "contiguous", "conv1d", "conv2d", "conv3d", "cos", "div", "dropout", "elu", "embedding", "erf", "exp",
    "expand", "flatten", "gelu", "group_norm", "gru", "hardsigmoid", "hardswish", "hardswish_", "hardtanh",
    "hardtanh_", "layer_norm", "leaky_relu", "linear", "log_softmax", "lstm", "masked_fill", "matmul", "max_pool2d",
    "mean", "mm", "mul", "mul_", "neg", "permute", "pow", "relu", "relu_", "reshape", "rsqrt",
    "scaled_dot_product_attention", "select", "sigmoid", "silu", "silu_", "sin", "softmax", "sqrt", "squeeze", "stack",
    "sub", "sum", "t", "tanh", "transpose", "unbind", "unsqueeze", "view", "where",
])  # fmt: skip
"""Operators whose Python binding takes their arguments in the schema's order. A model calls these bindings itself, and
on small tensors they take 0.3 to 1.4 microseconds less than the same operator through `torch.ops`."""


def runnable(brick: Brick, device: str = "cpu") -> BrickFunction:
    """A function of the brick's inputs that gives its outputs; made once, since making it takes long.

    What is no longer read is let go at once, as in a model that overwrites its variable.

    Raises:
        UserError: a layer calls what no brick may call, as that of an update does, or with other arguments than it has.
    """
    names: dict[str, Any] = {}
    lines = [f"{_values(range(len(brick.inputs)))} = inputs"] if brick.inputs else []
    last = {value: index for index, layer in enumerate(brick.layers) for value in [*layer.outputs, *layer.inputs]}
    kept = {*range(len(brick.inputs)), *brick.outputs, None}
    for index, layer in enumerate(brick.layers):
        lines.append(_line(layer, f"f{index}", names, torch.device(device)))
        lines += [f"v{value} = None" for value, at in last.items() if at == index and value not in kept]
    lines.append(f"return ({_values(brick.outputs)})" if brick.outputs else "return ()")
    exec("def run(inputs):\n " + "\n ".join(lines), names)
    function: BrickFunction = names["run"]
    return function


def _values(numbers: Sequence[int | None]) -> str:
    """Variables of values, each with a comma behind it."""
    return "".join("_, " if number is None else f"v{number}, " for number in numbers).rstrip(" ")


def _line(layer: Layer, function: str, names: dict[str, Any], device: torch.device) -> str:
    """The statement that runs a layer; what it calls and the literals that it hands over go to `names`."""
    names[function] = _binding(check_arguments(layer))
    arguments = [_expression(each, names, device) for each in layer.args]
    arguments += [f"{name}={_expression(each, names, device)}" for name, each in layer.kwargs.items()]
    call = f"{function}({', '.join(arguments)})"
    if not any(value is not None for value in layer.outputs):
        return call
    made = _values(layer.outputs)
    return f"{made} = {call}" if layer.several else f"{made.rstrip(',')} = {call}"


def _binding(operator: Any) -> Any:
    """The fastest way to call an operator."""
    packet = operator._schema.name.removeprefix("aten::")
    if packet in _DIRECT:
        for home in (torch, torch._C._nn, torch.Tensor):
            found = getattr(home, packet, None)
            if isinstance(found, (types.BuiltinFunctionType, types.MethodDescriptorType)):
                return found
    return operator._op


def _expression(thing: Json, names: dict[str, Any], device: torch.device) -> str:
    """A value's variable, a list with values in it, or a name for a literal."""
    if isinstance(thing, dict) and set(thing) == {"value"}:
        return f"v{int(thing['value'])}"
    if isinstance(thing, list) and Layer("", thing, {}, (), False).inputs:
        return "[" + ", ".join(_expression(each, names, device) for each in thing) + "]"
    name = f"c{len(names)}"
    names[name] = literal(thing, device)
    return name


def optimizer_class(update: Layer) -> Any:
    """PyTorch's optimizer that an update is a step of.

    Raises:
        UserError: PyTorch knows none of that name.
    """
    name = str(update.kwargs.get("optimizer"))
    made = vars(torch.optim).get(name)
    if not (isinstance(made, type) and issubclass(made, torch.optim.Optimizer)):
        raise UserError(f"PyTorch {torch.__version__} has no optimizer {name!r}: run the suite with the version that "
                        "it was generated by")  # fmt: skip
    return made


def names_of(layer: Layer) -> set[str]:
    """PyTorch's own names for what a layer calls, and for its arguments or options.

    Raises:
        UserError: PyTorch knows no such operator or optimizer.
    """
    if layer.operator.startswith("charact.update."):
        made = optimizer_class(layer)
        return {made.__name__, *inspect.signature(made).parameters}
    return {layer.operator, *(each.name for each in operator_of(layer.operator)._schema.arguments)}
