"""FLOP formulas of operators that PyTorch counts as zero or incorrectly, without pointwise work, as in PyTorch.

A formula takes the operator's arguments, and its result as `out_val`; 1 multiply-accumulate is 2 FLOP.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def mkldnn_rnn_layer_flop(inputs: Tensor, weight_ih: Tensor, weight_hh: Tensor, *_: Any, out_val: Any) -> int:
    """Return the FLOP of one recurrent layer in one direction on a CPU: two weight matrices per step."""
    return _recurrent(inputs, [weight_ih, weight_hh])


def mkldnn_rnn_layer_backward_flop(inputs: Tensor, weight_ih: Tensor, weight_hh: Tensor, *_: Any, out_val: Any) -> int:
    """Return the FLOP of its backward, which always computes the gradients of inputs and weights."""
    return 2 * _recurrent(inputs, [weight_ih, weight_hh])


def cudnn_rnn_flop(inputs: Tensor, weights: Sequence[Tensor], *_: Any, out_val: Any) -> int:
    """Return the FLOP of all layers and directions on a GPU; `weights` holds matrices, which count, and biases."""
    return _recurrent(inputs, weights)


def cudnn_rnn_backward_flop(inputs: Tensor, weights: Sequence[Tensor], *rest: Any, out_val: Any) -> int:
    """Return the FLOP of the backward: gradients of the inputs, and those of the weights if the mask selects them."""
    *_, output_mask = rest
    return (2 if output_mask[3] else 1) * _recurrent(inputs, weights)


def attention_flop(query: Tensor, key: Tensor, value: Tensor, *_: Any, out_val: Any, **__: Any) -> int:
    """Return the FLOP of attention: scores and weighted sums. As in PyTorch, a causal mask does not reduce them."""
    return _product_with_scores(query, key) + _product_with_scores(query, value)


def attention_backward_flop(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, out_val: Any, **__: Any
) -> int:
    """Return the FLOP of its backward: recomputed scores, and gradients of query, key, value and scores."""
    return 3 * _product_with_scores(query, key) + 2 * _product_with_scores(query, value)


def convolution_backward_flop(
    grad: Tensor, inputs: Tensor, weight: Tensor, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, output_mask: Sequence[bool], *, out_val: Any,
) -> int:
    """Return the FLOP of a convolution's gradients of inputs and weights: each as many as the convolution.

    PyTorch's formula overestimates the weight gradient of a grouped convolution by a factor of `groups`.
    """
    # Each weight is multiplied once at every position of the outputs, or of the inputs if transposed.
    positions = inputs if transposed else grad
    num_positions = positions.shape[0] * math.prod(positions.shape[2:])
    return 2 * num_positions * weight.numel() * (output_mask[0] + output_mask[1])


def no_product_flop(*_: Any, out_val: Any, **__: Any) -> int:
    """Return 0: the operator is pointwise, and its matrix products are dispatched separately."""
    return 0


def _recurrent(inputs: Tensor, weights: Sequence[Tensor]) -> int:
    """Return the FLOP of all steps with all matrices; inputs are (T, N, features) or packed (steps, features)."""
    num_steps = inputs.numel() // inputs.shape[-1]
    return 2 * num_steps * sum(weight.numel() for weight in weights if weight.dim() == 2)


def _product_with_scores(query: Tensor, other: Tensor) -> int:
    """Return the FLOP of a product of scores (..., queries, keys) and `other` (..., keys, width)."""
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
"""Formulas by operator, used before PyTorch's own registry."""
