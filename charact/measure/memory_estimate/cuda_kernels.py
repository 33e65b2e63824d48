"""Emulation of CUDA's operator selection on fake CPU tensors.

Fake CUDA tensors cannot be trained on without a GPU, so the trace is recorded on fake CPU tensors. Calls that allocate
differently on CUDA are replaced: dropout saves a mask of one byte per element, recurrent layers are one operator with
cuDNN's reserve, attention uses one of CUDA's kernels, and autocast follows CUDA's lists.

Not modelled: fused cells (`LSTMCell`); the copy of a batch norm's input in channels-last; and operators that autocast
runs in fp32 only on a CPU (3-D pooling, reflection padding). Of a workload in `fp16`, whose precision is replaced by
`bf16`, a softmax converts too much.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
import torch._meta_registrations
from torch import Tensor
from torch._C import DispatchKey
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

from charact.core.errors import UserError

_aten = torch.ops.aten

RNN_RELU, RNN_TANH, LSTM, GRU = range(4)
"""Values of cuDNN's modes (`cudnnRNNMode_t`)."""
RESERVED_UNITS = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 5, GRU: 6}
"""Elements of cuDNN's reserve per layer, hidden unit and step; one more between layers.

Source: pytorch/pytorch issue #2895 reports 736,000,000 bytes for an LSTM and 864,000,000 for a GRU on a P100. These are
23 and 27 times 32,000,000 bytes; with four layers, as the weight counts imply, 4 · 5 + 3 and 4 · 6 + 3. The values of
plain cells are a guess.
"""

_IN_16_BITS = ("einsum", "addmv", "addr", "mv", "chain_matmul", "linalg_multi_dot")
"""Operators that autocast runs in its type on CUDA but not on a CPU."""
_IN_FP32 = (
    "acos", "asin", "cosh", "erfinv", "sinh", "tan", "renorm", "layer_norm", "native_layer_norm", "group_norm",
    "rms_norm", "exp", "expm1", "log", "log10", "log1p", "log2", "pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor",
    "reciprocal", "rsqrt", "softplus", "logsumexp", "norm.Scalar", "norm.ScalarOpt_dim", "cosine_similarity", "dist",
)
"""Operators that autocast runs in fp32 on CUDA but not on a CPU (`aten/src/ATen/autocast_mode.h`)."""
_TO_FP32 = ("softmax.int", "log_softmax.int", "sum", "sum.dim_IntList", "cumsum", "cumprod", "linalg_vector_norm")
"""Operators that autocast runs in fp32 by setting their `dtype` argument."""
_WITHOUT_COPY = {_aten.softmax.int: _aten._softmax.default, _aten.log_softmax.int: _aten._log_softmax.default}
"""Operators that convert from fp16 to fp32 without a copy (`aten/src/ATen/native/SoftMax.cpp`)."""

_HALF = (torch.float16, torch.bfloat16)
_MAX_FLASH_WIDTH = 256
_MAX_CUDNN_WIDTH = 128
_CUDNN_FIRST = ((9, 0), (10, 0), (10, 3))
"""Compute capabilities that prefer cuDNN's kernels, with cuDNN 9.15.1 or later."""
_FIRST_WITH_CUDNN = "2.11"
"""PyTorch whose bundled cuDNN is new enough."""
_ALIGNED = 16
"""Alignment of a mask's rows (elements)."""


@contextlib.contextmanager
def cuda_kernels(capability: tuple[int, int], attention_backend: str | None = None) -> Iterator[None]:
    """Replace CPU kernels so that they allocate the tensors that CUDA kernels would; for fake tensors only.

    `attention_backend` is the only backend that may compute attention; None for PyTorch's choice.

    Inference mode becomes no-grad mode: in inference mode operators are not decomposed, and a recorder would see a
    whole `aten::linear` or `aten::lstm`. The memory is the same, except that autocast may not cache weights.
    """
    rules: dict[Any, Callable[..., Any]] = {
        # A mask of bool (source: `aten/src/ATen/native/Dropout.cpp`).
        _aten.dropout.default: lambda x, p, train: (
            _aten.native_dropout(x, p, train)[0] if train and p and x.numel() else x),
        _aten.scaled_dot_product_attention.default: partial(attention, capability, only=attention_backend),
        _aten.lstm.input: lambda x, states, *rest: _cudnn(LSTM, x, *states, *rest),
        _aten.gru.input: partial(_recurrent, GRU),
        _aten.rnn_tanh.input: partial(_recurrent, RNN_TANH),
        _aten.rnn_relu.input: partial(_recurrent, RNN_RELU),
    }
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    casts = _Casts()
    without_gradients = partial(_without_gradients, caches=_inference_caches_weights())
    try:
        for operator, rule in rules.items():
            library.impl(operator, rule, "AutogradCPU")
        for name in (*_IN_FP32, *_TO_FP32):
            library.impl(name, partial(_autocast, _overload(name), name in _TO_FP32), "AutocastCPU")
        for name in _IN_16_BITS:
            library.impl(name, partial(casts.call, _overload(name)), "AutocastCPU")
        with warnings.catch_warnings():  # the one that a kernel is replaced
            warnings.simplefilter("ignore")
            library.impl("cross_entropy_loss", _not_converted, "AutocastCPU")
        # PyTorch's own kernel returns an empty reserve. `Library.impl` of older PyTorch does not replace a kernel that
        # is written in Python, and does not restore it when the library is destroyed.
        library.m.impl("_cudnn_rnn", "Meta", _cudnn_rnn, False)
        library.impl("_cudnn_rnn_backward", _cudnn_rnn_backward, "Meta")
        gradients = torch.no_grad() if torch.is_inference_mode_enabled() else contextlib.nullcontext()
        with (torch.inference_mode(False), gradients, patch.object(torch._C, "_InferenceMode", without_gradients),
              patch.object(torch, "clear_autocast_cache", casts.clear)):
            yield
    finally:
        library.m.impl("_cudnn_rnn", "Meta", torch._meta_registrations._cudnn_rnn, False)
        library._destroy()


@contextlib.contextmanager
def _without_gradients(mode: bool = True, *, caches: bool) -> Iterator[None]:
    cached = torch.is_autocast_cache_enabled()
    try:
        torch.set_autocast_cache_enabled(cached and (caches or not mode))
        with torch.no_grad() if mode else contextlib.nullcontext():
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)


@cache
def _inference_caches_weights() -> bool:
    """Return whether autocast caches weights in inference mode; newer PyTorch does not (pytorch issue #158232)."""
    conversions = 0

    class Conversions(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal conversions
            conversions += func is not _aten.mm.default and args[0].requires_grad
            return func(*args, **(kwargs or {}))

    with _disable_current_modes():
        weight = torch.ones(2, 2, requires_grad=True)
        counter = Conversions()  # type: ignore[no-untyped-call]
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), counter:
            for _ in range(2):
                torch.mm(weight, weight)
    return conversions < 3


class _Casts:
    """Autocast's conversions of weights, cached until it ends (source: `cached_cast` in `autocast_mode.cpp`)."""

    def __init__(self) -> None:
        self._cached: dict[int, tuple[Tensor, Tensor]] = {}
        self._clear = torch.clear_autocast_cache

    def clear(self) -> None:
        self._cached.clear()
        self._clear()

    def call(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        args, kwargs = tree_map(partial(self._cast, dtype), (args, kwargs))
        with torch.autocast("cpu", enabled=False):
            return operator(*args, **kwargs)

    def _cast(self, dtype: torch.dtype, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype in (dtype, torch.float64):
            return value
        is_weight = value.dtype == torch.float32 and value.requires_grad and value.is_leaf and not value._is_view()
        if not is_weight or not torch.is_autocast_cache_enabled():
            return value.to(dtype)
        if id(value) not in self._cached:
            self._cached[id(value)] = value, value.to(dtype)
        return self._cached[id(value)][1]


def _not_converted(*args: Any) -> Any:
    """Call the parts of the cross-entropy; on a CPU autocast converts its inputs, on CUDA those of `nll_loss`."""
    return _aten.cross_entropy_loss.default._op_dk(DispatchKey.CompositeImplicitAutograd, *args)


def _recurrent(mode: int, x: Tensor, hidden: Tensor, weights: Sequence[Tensor], *options: Any) -> tuple[Tensor, ...]:
    return _cudnn(mode, x, hidden, None, weights, *options)[:2]


def _cudnn(mode: int, x: Tensor, hidden: Tensor, cell: Tensor | None, weights: Sequence[Tensor], has_biases: bool,
           num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool) -> tuple[Tensor, ...]:
    """Return outputs, hidden state and, for an LSTM, cell state (source: `aten/src/ATen/native/cudnn/RNN.cpp`).

    The model's weights are views of one buffer; autocast allocates a second buffer in its dtype.
    """
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        x, hidden, weights = x.to(dtype), hidden.to(dtype), [weight.to(dtype) for weight in weights]
        cell = None if cell is None else cell.to(dtype)
    num_gates, num_outputs = weights[1].shape
    hidden_size = num_gates // {LSTM: 4, GRU: 3}.get(mode, 1)
    projected = num_outputs if num_outputs != hidden_size else 0
    stride = (4 if has_biases else 2) + (projected > 0)
    outputs, *states, _, _ = _aten._cudnn_rnn(
        x, weights, stride, weights[0].detach(), hidden, cell, mode, hidden_size, projected, num_layers, batch_first,
        dropout, train, bidirectional, [], None)
    return outputs, *states


def _cudnn_rnn(x: Tensor, weights: Sequence[Tensor], stride: int, buffer: Tensor, hidden: Tensor, cell: Tensor | None,
               mode: int, hidden_size: int, projected: int, num_layers: int, batch_first: bool, dropout: float,
               train: bool, bidirectional: bool, *_: Any) -> tuple[Tensor, ...]:
    """Return outputs, states, the reserve (uint8) of modelled size, and the weights' buffer."""
    directions = 1 + bidirectional
    outputs = x.new_empty(*x.shape[:2], (projected or hidden_size) * directions)
    units = RESERVED_UNITS[mode] * num_layers + num_layers - 1
    num_steps = x.shape[0] * x.shape[1]
    reserved = num_steps * hidden_size * directions * units * x.element_size() if train else 0
    new_cell = x.new_empty(0) if cell is None else torch.empty_like(cell)
    return outputs, torch.empty_like(hidden), new_cell, x.new_empty(reserved, dtype=torch.uint8), buffer


def _cudnn_rnn_backward(x: Tensor, weights: Sequence[Tensor], stride: int, buffer: Tensor, hidden: Tensor,
                        cell: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
    """Return gradients of the input, of both states and of the weights; on CUDA these are views of one block."""
    *_, mask = rest
    return (torch.empty_like(x), torch.empty_like(hidden), None if cell is None else torch.empty_like(cell),
            [torch.empty_like(weight) for weight in weights] if mask[3] else [])


def _overload(name: str) -> Any:
    operator, _, overload = name.partition(".")
    return getattr(getattr(_aten, operator), overload or "default")


def _autocast(operator: Any, by_type: bool, *args: Any, **kwargs: Any) -> Any:
    def cast(value: Any) -> Any:
        is_low = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
        return value.float() if is_low else value

    with torch.autocast("cpu", enabled=False):
        if not by_type:
            return operator(*tree_map(cast, args), **tree_map(cast, kwargs))
        names = [argument.name for argument in operator._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        x = given["self"]
        if x.is_floating_point() and given.get("dtype") is None:
            if operator in _WITHOUT_COPY and x.dtype == torch.float16:
                return _WITHOUT_COPY[operator](x, given["dim"], True)
            given["dtype"] = torch.float32
        return operator(**given)


def attention(capability: tuple[int, int], query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None,
              dropout: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
              enable_gqa: bool = False, only: str | None = None) -> Tensor:
    """Compute attention (N, heads, queries, width) with the kernel of a device of that compute capability.

    Raises:
        UserError: the kernel `only` does not take these inputs.
    """
    kernels = kernels_for(capability, query, key, value, mask, enable_gqa=enable_gqa)
    if only is not None and only not in kernels:
        raise UserError(f"{only} attention does not take this model's inputs on a GPU of compute capability "
                        f"{'.'.join(map(str, capability))}: use another --attention")
    kernel = only or kernels[0]
    if mask is not None and mask.dtype == torch.bool and kernel != "math":
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -torch.inf)
    outputs: Tensor
    if kernel == "math":
        outputs = _aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
        return outputs
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    if kernel == "flash":
        width = query.shape[-1]
        query, key, value = (functional.pad(tensor, (0, -width % 8)) if width % 8 else tensor
                             for tensor in (query, key, value))
        outputs = _aten._scaled_dot_product_flash_attention(
            query, key, value, dropout, is_causal, False, scale=scale or width**-0.5)[0]
        return outputs[..., :width] if width % 8 else outputs
    if mask is not None:
        num_keys = mask.shape[-1]
        if kernel == "efficient" and num_keys % _ALIGNED:  # needs a copy with padded rows
            mask = functional.pad(mask, (0, -num_keys % _ALIGNED))[..., :num_keys]
        mask = mask.expand((*query.shape[:3], key.shape[2]))
    if kernel == "cudnn":
        outputs = _aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, keep, dropout, is_causal, False, scale=scale)[0]
    else:
        outputs = _aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, keep, dropout, is_causal, scale=scale)[0]
    return outputs


def kernels_for(capability: tuple[int, int], query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *,
                enable_gqa: bool = False) -> list[str]:
    """Return the attention kernels of CUDA that take these inputs, by `schema.ATTENTION`; PyTorch chooses the first."""
    width, half = query.shape[-1], query.dtype in _HALF
    alike = width == key.shape[-1] == value.shape[-1]
    if query.dim() != 4 or query.dtype == torch.float64 or 0 in (query.numel(), key.numel()):
        return ["math"]
    # cuDNN also takes more queries than keys, and other widths of values; the tensor sizes are the same.
    prefers_cudnn = capability in _CUDNN_FIRST and torch.__version__ >= _FIRST_WITH_CUDNN
    same_heads = query.shape[1] == key.shape[1] == value.shape[1]
    # `minimum_gemm_alignment` of widths
    alignment = (8 if half else 4) if capability >= (8, 0) else 8 if half and capability >= (7, 0) else 1
    takes = {
        "cudnn": half and alike and capability >= (8, 0) and width <= _MAX_CUDNN_WIDTH and width % 8 == 0,
        "flash": half and alike and capability >= (8, 0) and width <= _MAX_FLASH_WIDTH and mask is None,
        "efficient": same_heads and not enable_gqa and width % alignment == value.shape[-1] % alignment == 0,
        "math": True,
    }
    order = ("cudnn", "flash", "efficient", "math") if prefers_cudnn else ("flash", "efficient", "math", "cudnn")
    return [name for name in order if takes[name]]
