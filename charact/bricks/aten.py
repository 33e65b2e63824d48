"""Operators of bricks: the allowlist of ATen operators, checks of their arguments, and Python functions that call them.

Suites may come from untrusted authors, so a brick may call only the operators listed here. Each of them is a function
of tensors. None reads or writes files, takes an address, a storage or a generator, makes a non-dense tensor, or skips
the validation of an argument (as `unsafe` of `segment_reduce` does).

The list was collected with PyTorch 2.13 by `benchmarks/brick_operators.py`, which captures the workloads and models of
torchvision, timm and transformers. It also holds PyTorch's public functions of the same kinds, if their schemas have
only tensors, numbers, booleans, dtypes and short strings. Fuzzing (`tests/fuzz/test_suites.py`): no operator ended the
process in 40,000 random bricks, of which 18,449 ran. In-place operators, such as `relu_`, are listed without the
underscore.

`runnable` compiles a brick to a function. Its source holds only indices assigned here and names that PyTorch knows, no
text from a file. Literals are passed as objects.
"""

import math
import re
import types
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from keyword import iskeyword
from typing import Any

import torch
from torch._ops import OpOverload

from charact.bricks.brick import Brick
from charact.bricks.captured_graph import ITEM_BYTES, Json, Layer
from charact.core.errors import UserError

_ELEMENTWISE = """
    abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh
    atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp
    clamp_max clamp_min clip conj conj_physical copysign cos cosh deg2rad digamma div divide eq erf erfc erfinv exp exp2
    expm1 fill fix float_power floor floor_divide fmax fmin fmod frac ge greater greater_equal gt heaviside hypot imag
    isclose isfinite isinf isnan isneginf isposinf ldexp le lerp less less_equal lgamma log log10 log1p log2 logaddexp
    logaddexp2 logical_and logical_not logical_or logical_xor logit lt masked_fill maximum minimum mul multiply
    nan_to_num ne neg negative not_equal polar positive pow rad2deg real reciprocal remainder resolve_conj resolve_neg
    round rsqrt rsub sgn sigmoid sign signbit sin sinc sinh sqrt square sub subtract tan tanh true_divide trunc where
    xlogy zero
"""
_ACTIVATIONS = """
    celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid log_softmax mish prelu relu relu6
    rrelu selu silu softmax softplus softshrink threshold _log_softmax _prelu_kernel _safe_softmax _softmax
"""
_PRODUCTS = """
    addbmm addmm addmv addr baddbmm bilinear bmm chain_matmul conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d convolution _convolution dot einsum ger inner kron linear matmul mm mv outer tensordot vdot
"""
_SHAPES = """
    adjoint alias atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to cat channel_shuffle chunk clone
    column_stack concat concatenate contiguous copy detach diag diag_embed diagonal dsplit dstack expand expand_as
    flatten flip fliplr flipud hsplit hstack lift_fresh lift_fresh_copy mH mT meshgrid moveaxis movedim narrow numpy_T
    matrix_H permute pixel_shuffle pixel_unshuffle ravel repeat repeat_interleave reshape reshape_as _reshape_alias roll
    rot90 select slice split split_with_sizes squeeze stack swapaxes swapdims t tensor_split tile to _to_copy transpose
    type_as unbind unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes _unsafe_view unsqueeze view
    view_as view_as_complex view_as_real vsplit vstack
"""
_REDUCTIONS = """
    all amax amin aminmax any argmax argmin count_nonzero cross cummax cummin cumprod cumsum diff dist frobenius_norm
    linalg_norm linalg_vector_norm logcumsumexp logsumexp max mean median min mode nanmean nansum norm prod quantile std
    std_mean sum sum_to_size trace var var_mean
"""
_ORDER = "argsort bucketize isin kthvalue msort searchsorted sort topk"
_PLACES = """
    argwhere embedding gather index index_add index_copy index_fill index_put index_select masked_scatter
    masked_select nonzero one_hot scatter scatter_add scatter_reduce select_scatter slice_scatter take take_along_dim
    tril triu
"""
_NEW = """
    arange empty empty_like empty_permuted empty_strided eye full full_like linspace new_empty new_empty_strided
    new_full new_ones new_zeros ones ones_like scalar_tensor tril_indices triu_indices zeros zeros_like
    hamming_window hann_window
"""
_RANDOM = """
    alpha_dropout bernoulli dropout exponential feature_alpha_dropout feature_dropout native_dropout normal rand
    rand_like randint randint_like randn randn_like random randperm uniform
"""
_NORMALIZATIONS = """
    batch_norm cosine_similarity group_norm instance_norm layer_norm _fused_rms_norm native_batch_norm
    _native_batch_norm_legit _native_batch_norm_legit_no_training native_group_norm native_layer_norm
    pairwise_distance cdist rms_norm
"""
_POOLING = """
    adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d max_pool1d
    max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices
"""
_IMAGES = """
    affine_grid_generator col2im constant_pad_nd grid_sampler grid_sampler_2d grid_sampler_3d im2col pad
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_trilinear3d
"""
_ATTENTION = """
    scaled_dot_product_attention _native_multi_head_attention _transformer_encoder_layer_fwd
    _scaled_dot_product_attention_math _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_for_cpu
"""
_RECURRENT = """
    gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell mkldnn_rnn_layer _cudnn_rnn
    _thnn_fused_gru_cell _thnn_fused_lstm_cell
"""
_LOSSES = """
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy_loss hinge_embedding_loss
    huber_loss kl_div l1_loss margin_ranking_loss mse_loss nll_loss nll_loss2d nll_loss2d_forward nll_loss_forward
    nll_loss_nd poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss
"""
_RETURN_NUMBERS = ("_local_scalar_dense", "equal", "item", "is_nonzero", "_fused_sdp_choice")
"""Operators that return a Python number to the model's code."""

OPERATORS = frozenset(" ".join([
    _ELEMENTWISE, _ACTIVATIONS, _PRODUCTS, _SHAPES, _REDUCTIONS, _ORDER, _PLACES, _NEW, _RANDOM, _NORMALIZATIONS,
    _POOLING, _IMAGES, _ATTENTION, _RECURRENT, _LOSSES, *_RETURN_NUMBERS,
]).split())  # fmt: skip
"""Names of the allowed operators, without namespace and overload."""

STRINGS = frozenset([
    "none", "mean", "sum", "tanh", "floor", "trunc", "prod", "amax", "amin", "linear", "lower", "higher", "midpoint",
    "nearest", "ij", "xy", "fro", "nuc", "valid", "same", "constant", "reflect", "replicate", "circular", "left",
    "right", "batchmean",
])  # fmt: skip
"""Allowed string arguments, in addition to the equations of `einsum`."""
_EQUATION = re.compile(r"[A-Za-z.]{1,30}(,[A-Za-z.]{1,30}){0,7}->[A-Za-z.]{0,30}")

MEMORY_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format")
LAYOUTS = ("strided",)
_LARGEST = 2**63
_MOST_ITEMS = 4096
"""Maximum number of items in a list; operators that join or split tensors use a few hundred."""


def operator_of(name: str) -> OpOverload:
    """Return the ATen operator of that name, such as `aten.conv2d.default`.

    Raises:
        UserError: PyTorch has no such operator, or the allowlist does not hold it.
    """
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
    """Check a layer's arguments against its operator's schema, and return the operator.

    Raises:
        UserError: an argument has the wrong type, is missing, unknown, or given twice.
    """
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
    """Return the Python value of a layer's argument.

    Raises:
        UserError: the argument is of an unknown kind.
    """
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


def _is_value(thing: Json) -> bool:
    return isinstance(thing, dict) and thing.keys() == {"value"}


def _one_of(key: str, names: Collection[str]) -> Callable[[Json], bool]:
    return lambda thing: (isinstance(thing, dict) and thing.keys() == {key} and isinstance(thing[key], str)
                          and thing[key] in names)


_KINDS: dict[str, Callable[[Json], bool]] = {
    "TensorType": lambda thing: _is_value(thing) or _is_number(thing),  # PyTorch accepts a number as a 0-d tensor
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
