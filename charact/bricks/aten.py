"""Calls of ATen operators: arguments as JSON, checks against schema and allowlist, and compiled bricks.

`runnable` compiles a brick to a function. Its source holds only indices assigned here and names that PyTorch knows, no
text from a file. Literals are passed as objects.
"""

import math
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from keyword import iskeyword
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from charact.bricks.allowlist import _RETURN_NUMBERS, LAYOUTS, MEMORY_FORMATS, OPERATORS, STRINGS
from charact.bricks.suite.brick import Brick
from charact.bricks.suite.captured_graph import ITEM_BYTES, CaptureError, Json, Layer
from charact.core.errors import UserError

_EQUATION = re.compile(r"[A-Za-z.]{1,30}(,[A-Za-z.]{1,30}){0,7}->[A-Za-z.]{0,30}")
_LARGEST = 2**63
_MOST_ITEMS = 4096
"""Maximum number of items in a list; operators that join or split tensors use a few hundred."""


def operator_of(name: str) -> OpOverload:
    """Return the ATen operator of that name, such as `aten.conv2d.default`."""
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    if namespace != "aten" or not OPERATORS.intersection([packet, packet.removesuffix("_")]):
        raise UserError(f"a brick may not call operator {name[:80]}: generate the suite again")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    if not isinstance(found, OpOverload):
        raise UserError(f"PyTorch {torch.__version__} has no operator {name[:80]}: run the suite with the version that "
                        "generated it")  # fmt: skip
    if packet not in _RETURN_NUMBERS and not any(_holds_tensors(each.type) for each in found._schema.returns):
        raise UserError(f"a brick may not call operator {name[:80]}: generate the suite again")
    if any(each.is_out for each in found._schema.arguments):
        raise UserError(f"operator {name[:80]} writes into an `out` argument: generate the suite again")
    return found


def check_arguments(layer: Layer) -> OpOverload:
    """Check a layer's arguments against its operator's schema, and return the operator."""
    operator = operator_of(layer.operator)
    arguments = {each.name: each for each in operator._schema.arguments}
    positional = [each for each in operator._schema.arguments if not each.kwarg_only]
    by_position = dict(zip((each.name for each in positional), layer.args, strict=False))
    if len(layer.args) > len(positional):
        raise _wrong(layer, f"{len(layer.args)} arguments, but takes {len(positional)}")
    # The generated source cannot pass an argument whose name is a Python keyword, such as `from`, by name.
    named = {name for name in arguments if not iskeyword(name)} - by_position.keys()
    if strange := sorted(layer.kwargs.keys() - named):
        raise _wrong(layer, f"an unknown or repeated argument {strange[0][:40]!r}")
    given = by_position | layer.kwargs
    for name, each in arguments.items():
        if name not in given:
            if not each.has_default_value():
                raise _wrong(layer, f"no value for argument {name!r}")
        elif not _fits(each.real_type, given[name]) or (name == "pin_memory" and given[name]):
            raise _wrong(layer, f"an argument {name!r} that is not a {each.real_type}")
    num_results = len(operator._schema.returns)
    if not layer.several and len(layer.outputs) != 1 and num_results:
        raise _wrong(layer, f"{len(layer.outputs)} results, but returns one")
    return operator


def literal(thing: Json, device: torch.device) -> Any:
    """Return the Python value of a layer's argument."""
    if isinstance(thing, list):
        return [literal(each, device) for each in thing]
    if not isinstance(thing, dict):
        return thing
    if thing == {"device": True}:
        return device
    for key, names in (("dtype", ITEM_BYTES), ("memory_format", MEMORY_FORMATS), ("layout", LAYOUTS)):
        if _one_of(key, names)(thing):
            return getattr(torch, thing[key])
    if thing.keys() == {"float"} and _is_float(thing):
        return float(thing["float"])
    if thing.keys() == {"complex"} and _is_number(thing):
        return complex(*thing["complex"])
    raise UserError(f"a layer's argument {ascii(thing)[:80]} is of an unknown kind: generate the suite again")


def _wrong(layer: Layer, what: str) -> UserError:
    return UserError(f"operator {layer.operator} is called with {what}: run the suite with the PyTorch version that "
                     "generated it")  # fmt: skip


def _fits(kind: Any, thing: Json) -> bool:
    """Return whether a value fits an argument's type in the schema."""
    name = kind.kind()
    if name == "OptionalType":
        return thing is None or _fits(kind.getElementType(), thing)
    if name == "ListType":
        if _is_number(thing) and kind.getElementType().kind() in ("IntType", "SymIntType", "FloatType"):
            return True  # PyTorch expands a number to a list of fixed length
        return (isinstance(thing, list) and len(thing) <= _MOST_ITEMS
                and all(_fits(kind.getElementType(), each) for each in thing))
    return name in _KINDS and _KINDS[name](thing)


def _is_whole(thing: Json) -> bool:
    return isinstance(thing, int) and -_LARGEST <= thing < _LARGEST


def _is_float(thing: Json) -> bool:
    if isinstance(thing, dict):
        return thing.keys() == {"float"} and thing["float"] in ("inf", "-inf", "nan")
    return isinstance(thing, float) or _is_whole(thing)


def _is_number(thing: Json) -> bool:
    if isinstance(thing, dict) and thing.keys() == {"complex"}:
        parts = thing["complex"]
        return isinstance(parts, list) and len(parts) == 2 and all(
            isinstance(part, int | float) and math.isfinite(part) for part in parts)
    return _is_float(thing)


def _holds_tensors(kind: Any) -> bool:
    return bool(kind.kind() == "TensorType"
                or (kind.kind() in ("ListType", "OptionalType") and _holds_tensors(kind.getElementType())))


def _one_of(key: str, names: Collection[str]) -> Callable[[Json], bool]:
    return lambda thing: (isinstance(thing, dict) and thing.keys() == {key} and isinstance(thing[key], str)
                          and thing[key] in names)


_KINDS: dict[str, Callable[[Json], bool]] = {
    # PyTorch accepts a number as a 0-d tensor.
    "TensorType": lambda thing: (isinstance(thing, dict) and thing.keys() == {"value"}) or _is_number(thing),
    "IntType": _is_whole, "SymIntType": _is_whole, "FloatType": _is_float, "NumberType": _is_number,
    "BoolType": lambda thing: isinstance(thing, bool),
    "StringType": lambda thing: isinstance(thing, str) and (thing in STRINGS or bool(_EQUATION.fullmatch(thing))),
    "ScalarTypeType": _one_of("dtype", ITEM_BYTES), "MemoryFormatType": _one_of("memory_format", MEMORY_FORMATS),
    "LayoutType": _one_of("layout", LAYOUTS),
    "DeviceObjType": lambda thing: thing == {"device": True},
}  # fmt: skip
"""Check of an argument by the kind of its schema type; other kinds are rejected."""


def written_values(layer: Layer) -> list[int]:
    """Return the values that a layer changes in place, according to the operator's schema.

    Includes the running statistics of normalizations in training, which some schemas do not mark as written.
    """
    arguments = operator_of(layer.operator)._schema.arguments
    given = dict(zip((each.name for each in arguments), layer.args, strict=False)) | layer.kwargs
    names = [each.name for each in arguments if each.alias_info is not None and each.alias_info.is_write]
    if any(given.get(name) is True for name in ("training", "train", "use_input_stats")):
        names += ["running_mean", "running_var"]
    written = [given[name] for name in dict.fromkeys(names) if name in given]
    return replace(layer, args=written, kwargs={}).inputs


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
    """
    names: dict[str, Any] = {}
    lines = [f"{_values(range(len(brick.inputs)))} = inputs"] if brick.inputs else []
    last = {value: index for index, layer in enumerate(brick.layers) for value in [*layer.outputs, *layer.inputs]}
    kept = {*range(len(brick.inputs)), *brick.outputs, None}
    for index, layer in enumerate(brick.layers):
        names[f"f{index}"] = _binding(check_arguments(layer))
        arguments = [_expression(each, names, torch.device(device)) for each in layer.args]
        arguments += [f"{name}={_expression(each, names, torch.device(device))}" for name, each in layer.kwargs.items()]
        made = _values(layer.outputs) if layer.several else _values(layer.outputs).rstrip(",")
        is_read = any(value is not None for value in layer.outputs)
        lines.append(f"{f'{made} = ' if is_read else ''}f{index}({', '.join(arguments)})")
        lines += [f"v{value} = None" for value, at in last.items() if at == index and value not in kept]
    lines.append(f"return ({_values(brick.outputs)})" if brick.outputs else "return ()")
    exec("def run(inputs):\n " + "\n ".join(lines), names)
    function: BrickFunction = names["run"]
    return function


def _values(numbers: Sequence[int | None]) -> str:
    return "".join("_, " if number is None else f"v{number}, " for number in numbers).rstrip(" ")


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
    """Return the optimizer class of an update."""
    name = str(update.kwargs.get("optimizer"))
    made = vars(torch.optim).get(name)
    if not (isinstance(made, type) and issubclass(made, torch.optim.Optimizer)):
        raise UserError(f"PyTorch {torch.__version__} has no optimizer {name!r}: run the suite with the version that "
                        "generated it")  # fmt: skip
    return made


_USES_CUDNN = {"cudnn_enabled", "cudnn_enable"}


def encoded_call(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], index_of: Callable[[Tensor], int]
                 ) -> tuple[list[Json], dict[str, Json]]:
    """Encode the arguments of a call as JSON; `index_of` returns the index of a tensor.

    Arguments that enable cuDNN become true: a capture on a machine without cuDNN must not disable it elsewhere.

    Raises:
        CaptureError: an argument has no JSON form, such as a random number generator.
    """
    names = [argument.name for argument in operator._schema.arguments]
    listed = [True if name in _USES_CUDNN else _encoded(argument, index_of)
              for name, argument in zip(names, args, strict=False)]
    return listed, {name: True if name in _USES_CUDNN else _encoded(argument, index_of)
                    for name, argument in kwargs.items()}


def _encoded(argument: Any, index_of: Callable[[Tensor], int]) -> Json:
    if isinstance(argument, Tensor):
        return {"value": index_of(argument)}
    if isinstance(argument, (list, tuple)):
        return [_encoded(each, index_of) for each in argument]
    if argument is None or isinstance(argument, (bool, str)):
        return argument
    if isinstance(argument, (int, torch.SymInt)):
        return int(argument)
    if isinstance(argument, (float, torch.SymFloat)):
        value = float(argument)
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(argument, complex):
        return {"complex": [argument.real, argument.imag]}
    if isinstance(argument, (torch.dtype, torch.memory_format, torch.layout)):
        return {type(argument).__name__: str(argument).removeprefix("torch.")}
    if isinstance(argument, torch.device):
        return {"device": True}
    raise CaptureError(f"is called with a {type(argument).__name__}, which cannot be stored")


def operator_name(operator: Any) -> str:
    """Return the full name of an ATen operator, such as `aten.conv2d.default`.

    Raises:
        CaptureError: it is not an ATen operator: running it would need the model's libraries.
    """
    if not isinstance(operator, OpOverload) or operator.namespace != "aten":
        raise CaptureError(f"its operator {operator} is not a PyTorch operator")
    return str(operator)


def call(layer: Layer, values: Mapping[int, Tensor], device: torch.device) -> list[Any]:
    """Run a layer and return its results, one for each of its outputs."""
    args = [_decoded(argument, values, device) for argument in layer.args]
    kwargs = {name: _decoded(argument, values, device) for name, argument in layer.kwargs.items()}
    result = operator_of(layer.operator)(*args, **kwargs)
    return list(result) if layer.several else [result]


def _decoded(argument: Json, values: Mapping[int, Tensor], device: torch.device) -> Any:
    if isinstance(argument, list):
        return [_decoded(each, values, device) for each in argument]
    if not isinstance(argument, dict):
        return argument
    return values[argument["value"]] if argument.keys() == {"value"} else literal(argument, device)
