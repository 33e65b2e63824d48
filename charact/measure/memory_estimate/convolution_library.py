"""Library that computes a convolution on this CPU, which determines its internal memory and depends on the shapes."""

from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

_NAMES = {"convolution", "convolution_backward", "conv1d", "conv2d", "conv3d"}
_PLACES = {1: ((1,), (0,)), 2: ((1, 1), (0, 0)), 3: ((1, 1, 1), (0, 0, 0))}
"""Default stride or dilation, and padding, by number of dimensions."""


def library_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return PyTorch's convolution backend; None for other operators, or if it cannot be determined.

    PyTorch uses its own kernels for small layers with one image at a time, and oneDNN for most others.
    """
    if func._overloadpacket.__name__ not in _NAMES:
        return None
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    ones, zeros = _PLACES[given["input"].dim() - 2]
    padding = given.get("padding", zeros)
    if isinstance(padding, str):
        return None
    return _library(
        tuple(given["input"].shape), tuple(given["weight"].shape), given["input"].dtype,
        tuple(given.get("stride", ones)), tuple(padding), tuple(given.get("dilation", ones)),
        given.get("transposed", False), tuple(given.get("output_padding", zeros)), given.get("groups", 1),
        torch.get_num_threads())


@lru_cache(maxsize=4096)
def _library(shape: tuple[int, ...], weight: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...],
             padding: tuple[int, ...], dilation: tuple[int, ...], transposed: bool, output_padding: tuple[int, ...],
             groups: int, num_threads: int) -> str:
    with unset_fake_temporarily():
        one = torch.zeros(1, dtype=dtype)  # expanded: no memory
        backend: Any = torch._C._select_conv_backend(
            one.expand(shape), one.expand(weight), None, stride, padding, dilation, transposed, output_padding, groups)
    return str(backend.name)
