"""Emulation of PyTorch's attention on a CUDA device: choice of the kernel, and its inputs and outputs.

Source: pytorch/pytorch, `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp` (choice of the kernel), `attention.cpp`
(preparation of inputs). Not checked on a GPU; builds without one of the kernels fall back to another.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)
_MAX_FLASH_WIDTH = 256
_MAX_CUDNN_WIDTH = 128
_CUDNN_FIRST = ((9, 0), (10, 0), (10, 3))
"""Compute capabilities that prefer cuDNN's kernels, with cuDNN 9.15.1 or later."""
_FIRST_WITH_CUDNN = "2.11"
"""PyTorch whose bundled cuDNN is new enough."""
_ALIGNED = 16
"""Alignment of a mask's rows (elements)."""


def attention(capability: tuple[int, int], query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None,
              dropout: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
              enable_gqa: bool = False) -> Tensor:
    """Compute attention (N, heads, queries, width) with the kernel of a device of that compute capability."""
    kernel = kernel_for(capability, query, key, value, mask, enable_gqa=enable_gqa)
    if mask is not None and mask.dtype == torch.bool and kernel != "math":
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -torch.inf)
    outputs: Tensor
    if kernel == "math":
        outputs = _aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
        return outputs
    keep = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    if kernel == "flash":
        width = query.shape[-1]
        query, key, value = (functional.pad(each, (0, -width % 8)) if width % 8 else each
                             for each in (query, key, value))
        outputs = _aten._scaled_dot_product_flash_attention(
            query, key, value, dropout, is_causal, False, scale=scale or width**-0.5)[0]
        return outputs[..., :width] if width % 8 else outputs
    if mask is not None:
        mask = _spread(mask, (*query.shape[:3], key.shape[2]), aligned=kernel == "efficient")
    if kernel == "cudnn":
        outputs = _aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, keep, dropout, is_causal, False, scale=scale)[0]
    else:
        outputs = _aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, keep, dropout, is_causal, scale=scale)[0]
    return outputs


def kernel_for(capability: tuple[int, int], query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *,
               enable_gqa: bool = False) -> str:
    """Return the name of the kernel: cudnn, flash, efficient or math."""
    width, half = query.shape[-1], query.dtype in _HALF
    alike = width == key.shape[-1] == value.shape[-1]
    if query.dim() != 4 or query.dtype == torch.float64 or 0 in (query.numel(), key.numel()):
        return "math"
    # cuDNN also takes more queries than keys, and other widths of values; the tensor sizes are the same.
    prefers_cudnn = capability in _CUDNN_FIRST and torch.__version__ >= _FIRST_WITH_CUDNN
    if half and alike and prefers_cudnn and width <= _MAX_CUDNN_WIDTH and width % 8 == 0:
        return "cudnn"
    if half and alike and capability >= (8, 0) and width <= _MAX_FLASH_WIDTH and mask is None:
        return "flash"
    same_heads = query.shape[1] == key.shape[1] == value.shape[1]
    if same_heads and not enable_gqa and all(size % _alignment(capability, half) == 0
                                             for size in (width, value.shape[-1])):
        return "efficient"
    return "math"


def _alignment(capability: tuple[int, int], half: bool) -> int:
    """Return the alignment of widths for the efficient kernel (`minimum_gemm_alignment`)."""
    if capability >= (8, 0):
        return 8 if half else 4
    return 8 if half and capability >= (7, 0) else 1


def _spread(mask: Tensor, shape: tuple[Any, ...], *, aligned: bool) -> Tensor:
    """Expand the mask to all heads and queries; copy it with padded rows if the kernel needs alignment."""
    keys = mask.shape[-1]
    if aligned and keys % _ALIGNED:
        mask = functional.pad(mask, (0, -keys % _ALIGNED))[..., :keys]
    return mask.expand(shape)
