"""Compiling bricks to Python functions that call PyTorch operators in order.

The generated source holds only indices assigned here and names that PyTorch knows, no text from a file. Literals are
passed as objects.
"""

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from charact.bricks.aten import check_arguments, literal
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
"""Operators whose Python binding takes its arguments in the schema's order. Models call these bindings; on small
tensors they take 0.3 to 1.4 microseconds less than the same operator through `torch.ops`."""


def runnable(brick: Brick, device: str = "cpu") -> BrickFunction:
    """Compile a brick to a function from its inputs to its outputs. This is slow: call it once per brick.

    The function releases each value after its last use.

    Raises:
        UserError: a layer's operator is not allowed (an update's is not), or its arguments do not fit the schema.
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
    """Return the variable names of values, each followed by a comma."""
    return "".join("_, " if number is None else f"v{number}, " for number in numbers).rstrip(" ")


def _line(layer: Layer, function: str, names: dict[str, Any], device: torch.device) -> str:
    """Return the statement that runs a layer, and add its function and literals to `names`."""
    names[function] = _binding(check_arguments(layer))
    arguments = [_expression(each, names, device) for each in layer.args]
    arguments += [f"{name}={_expression(each, names, device)}" for name, each in layer.kwargs.items()]
    call = f"{function}({', '.join(arguments)})"
    if not any(value is not None for value in layer.outputs):
        return call
    made = _values(layer.outputs)
    return f"{made} = {call}" if layer.several else f"{made.rstrip(',')} = {call}"


def _binding(operator: Any) -> Any:
    """Return the callable with the least overhead for an operator."""
    packet = operator._schema.name.removeprefix("aten::")
    if packet in _DIRECT:
        for home in (torch, torch._C._nn, torch.Tensor):
            found = getattr(home, packet, None)
            if isinstance(found, (types.BuiltinFunctionType, types.MethodDescriptorType)):
                return found
    return operator._op


def _expression(thing: Json, names: dict[str, Any], device: torch.device) -> str:
    """Return source for an argument: a variable, a list with variables, or the name of a literal."""
    if isinstance(thing, dict) and set(thing) == {"value"}:
        return f"v{int(thing['value'])}"
    if isinstance(thing, list) and Layer("", thing, {}, (), False).inputs:
        return "[" + ", ".join(_expression(each, names, device) for each in thing) + "]"
    name = f"c{len(names)}"
    names[name] = literal(thing, device)
    return name


def optimizer_class(update: Layer) -> Any:
    """Return the optimizer class of an update.

    Raises:
        UserError: torch.optim has no class of that name.
    """
    name = str(update.kwargs.get("optimizer"))
    made = vars(torch.optim).get(name)
    if not (isinstance(made, type) and issubclass(made, torch.optim.Optimizer)):
        raise UserError(f"PyTorch {torch.__version__} has no optimizer {name!r}: run the suite with the version that "
                        "generated it")  # fmt: skip
    return made
