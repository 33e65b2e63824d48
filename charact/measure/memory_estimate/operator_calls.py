"""Calls of operators as keys: the operator and its arguments, with each tensor reduced to its layout."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch

from charact.core.operator_types import operator_type

_BETWEEN_RANKS = ("c10d", "_c10d_functional", "fsdp")
_EXACT_TYPES = (torch.float32, torch.float64)
"""Types of matrices whose products BLAS computes from the tensors themselves."""


class Layout(NamedTuple):
    """Shape, strides and type of a strided CPU tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Return the bytes from the first to the last element."""
        if 0 in self.shape:
            return 0
        return (1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
                ) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class OperatorCall:
    """A call of an operator; equal calls allocate the same memory in equal surroundings (threads, library, CPU).

    *Error*: memory that depends on values may differ.
    """

    operator: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    grad_enabled: bool
    """Whether it was called in grad mode, in which oneDNN's recurrent layers keep a workspace."""

    def layouts(self) -> Iterator[Layout]:
        """Yield the layouts of the tensors among the arguments, in order."""
        yield from _layouts((self.args, tuple(value for _, value in self.kwargs)))

    @property
    def input_bytes(self) -> int:
        """Return the bytes of the tensors among the arguments."""
        return sum(layout.num_bytes for layout in self.layouts())

    @cached_property
    def text(self) -> str:
        """Key of the call: calls with the same text are equal; 1, 1.0 and True differ."""
        return f"{self.operator}{self.args!r}{self.kwargs!r}{self.grad_enabled}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OperatorCall) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments to call the operator with: tensors of zeros, which are valid indices, too."""
        return ([_with_tensors(value) for value in self.args],
                {name: _with_tensors(value) for name, value in self.kwargs})


def call_of(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OperatorCall | None:
    """Describe a call of an operator; return None if it allocates only its outputs, or cannot be repeated alone.

    Views, operators without tensors and collectives allocate nothing inside. Neither do pointwise operators on tensors
    of one type; a Python number may allocate up to 128 bytes, which is neglected. Nor do products in single or double
    precision, unless fewer digits are allowed, whose matrices BLAS reads without copies.
    """
    call = described(operator, args, kwargs) if _may_allocate(operator) else None
    if call is None:
        return None
    layouts = list(call.layouts())
    alike = len({layout.dtype for layout in layouts}) <= 1
    if not layouts or (alike and torch.Tag.pointwise in operator.tags):
        return None
    is_product = operator_type(_name(operator)) == "GEMM" and all(each == "ieee" for each in float32_precisions())
    return None if is_product and alike and all(_is_matrix_for_blas(layout) for layout in layouts) else call


def float32_precisions() -> tuple[str, ...]:
    """Return the types in which oneDNN may compute float32 products and convolutions; "ieee" is float32 itself."""
    backend: Any = torch.backends.mkldnn
    if not hasattr(backend, "matmul"):  # before PyTorch 2.9
        return ("ieee" if torch.get_float32_matmul_precision() == "highest" else "bf16",)
    settings = [part.fp32_precision for part in (backend.matmul, backend.conv, backend.rnn)]
    return tuple("ieee" if setting == "none" else setting for setting in settings)


def described(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OperatorCall | None:
    """Describe a call of an operator; return None if an argument is neither a plain value nor a strided tensor."""
    try:
        return OperatorCall(operator, _described(args), tuple((name, _described(value)) for name, value in
                                                              kwargs.items()), torch.is_grad_enabled())
    except _NotDescribed:
        return None


class _NotDescribed(Exception):
    """An argument is neither a strided CPU tensor nor a plain value."""


@cache
def _may_allocate(operator: Any) -> bool:
    return operator.namespace not in _BETWEEN_RANKS and not operator.is_view and operator_type(
        _name(operator)) not in ("allocation", "view")


@cache
def _name(operator: Any) -> str:
    return f"{operator.namespace}::{operator._overloadpacket.__name__}"


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized:
            raise _NotDescribed
        return Layout(tuple(value.shape), tuple(value.stride()), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(map(_described, value))
    if isinstance(value, torch.Generator):
        return None  # the default one allocates the same
    if value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout,
                                           torch.memory_format)):
        return value
    raise _NotDescribed


def _layouts(value: Any) -> Iterator[Layout]:
    if isinstance(value, Layout):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _layouts(part)


def _with_tensors(value: Any) -> Any:
    if isinstance(value, Layout):
        return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device="cpu").zero_()
    return [_with_tensors(part) for part in value] if isinstance(value, tuple) else value


def _is_matrix_for_blas(layout: Layout) -> bool:
    """Return whether BLAS reads a tensor's matrices as they are: rows or columns without gaps between elements."""
    if layout.dtype not in _EXACT_TYPES or len(layout.shape) < 2:
        return layout.dtype in _EXACT_TYPES
    (rows, columns), (down, right) = layout.shape[-2:], layout.stride[-2:]
    return (right == 1 and down >= max(1, columns)) or (down == 1 and right >= max(1, rows))
