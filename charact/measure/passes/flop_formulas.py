"""FLOP of operators that PyTorch counts as nothing, or wrongly. Pointwise work is left out, as in PyTorch's formulas.

A formula takes what its operator was called with, and its result as `out_val`; 1 multiply-accumulate is 2 FLOP.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def mkldnn_rnn_layer_flop(inputs: Tensor, weight_ih: Tensor, weight_hh: Tensor, *_: Any, out_val: Any) -> int:
    """FLOP of one recurrent layer in one direction on a CPU: every step multiplies by both of its weight matrices."""
    return _recurrent(inputs, [weight_ih, weight_hh])


def mkldnn_rnn_layer_backward_flop(inputs: Tensor, weight_ih: Tensor, weight_hh: Tensor, *_: Any, out_val: Any) -> int:
    """FLOP of its backward pass, which always computes the gradients of the inputs and of the weights."""
    return 2 * _recurrent(inputs, [weight_ih, weight_hh])


def cudnn_rnn_flop(inputs: Tensor, weights: Sequence[Tensor], *_: Any, out_val: Any) -> int:
    """FLOP of all layers and directions on a GPU; `weights` holds matrices and biases, of which matrices count."""
    return _recurrent(inputs, weights)


def cudnn_rnn_backward_flop(inputs: Tensor, weights: Sequence[Tensor], *rest: Any, out_val: Any) -> int:
    """FLOP of their backward pass: gradients of the inputs always, those of the weights where the mask asks."""
    *_, output_mask = rest
    return (2 if output_mask[3] else 1) * _recurrent(inputs, weights)


def attention_flop(query: Tensor, key: Tensor, value: Tensor, *_: Any, out_val: Any, **__: Any) -> int:
    """FLOP of attention: scores, and the sum of values by them. A causal mask saves none, as PyTorch counts it."""
    return _product_with_scores(query, key) + _product_with_scores(query, value)


def attention_backward_flop(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, out_val: Any, **__: Any
) -> int:
    """FLOP of its backward pass: the scores again, and the gradients of query, key, value and scores."""
    return 3 * _product_with_scores(query, key) + 2 * _product_with_scores(query, value)


def convolution_backward_flop(
    grad: Tensor, inputs: Tensor, weight: Tensor, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, output_mask: Sequence[bool], *, out_val: Any,
) -> int:
    """FLOP of a convolution's gradients by its inputs and its weights: as many each as the convolution has.

    PyTorch's formula counts a grouped convolution's gradient by its weights `groups` times too often.
    """
    # Each weight is multiplied once at every position of the outputs, or of the inputs if transposed.
    positions = inputs if transposed else grad
    num_positions = positions.shape[0] * math.prod(positions.shape[2:])
    return 2 * num_positions * weight.numel() * (output_mask[0] + output_mask[1])


def no_product_flop(*_: Any, out_val: Any, **__: Any) -> int:
    """Nothing: the operator is pointwise, its matrix products are dispatched on their own."""
    return 0


def _recurrent(inputs: Tensor, weights: Sequence[Tensor]) -> int:
    """Matrices met once by each step of each sequence; inputs are (T, N, features) or packed (steps, features)."""
    num_steps = inputs.numel() // inputs.shape[-1]
    return 2 * num_steps * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _product_with_scores(query: Tensor, other: Tensor) -> int:
    """A product between scores (..., queries, keys) and rows of width of `other` (..., keys, width)."""
    return 2 * math.prod(query.shape[:-1]) * other.shape[-2] * other.shape[-1]


FORMULAS: dict[Any, Callable[..., int]] = {
    _aten.mkldnn_rnn_layer: mkldnn_rnn_layer_flop,
    _aten.mkldnn_rnn_layer_backward: mkldnn_rnn_layer_backward_flop,
    _aten._cudnn_rnn: cudnn_rnn_flop,
    _aten._cudnn_rnn_backward: cudnn_rnn_backward_flop,
    _aten._thnn_fused_lstm_cell: no_product_flop,
    _aten._thnn_fused_lstm_cell_backward_impl: no_product_flop,
    _aten._thnn_fused_gru_cell: no_product_flop,
    _aten._thnn_fused_gru_cell_backward: no_product_flop,
    _aten._scaled_dot_product_flash_attention_for_cpu: attention_flop,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward_flop,
    _aten.convolution_backward: convolution_backward_flop,
}
"""Formula of an operator; looked up before PyTorch's own registry."""
