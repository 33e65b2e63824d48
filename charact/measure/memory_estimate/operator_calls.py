"""Calls of operators as keys: the operator and its arguments, with each tensor reduced to its layout."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from charact.core.operator_types import operator_type

_BETWEEN_RANKS = ("c10d", "_c10d_functional", "fsdp")
_EXACT_TYPES = (torch.float32, torch.float64)
"""Types of matrices whose products BLAS computes from the tensors themselves."""


class Layout(NamedTuple):
    """What a kernel sees of a strided tensor on a CPU, except its values."""

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


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """A call of an operator; equal calls allocate the same memory in equal surroundings (threads, library, CPU)."""

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

    def text(self) -> str:
        """Return a text that is equal for equal calls only."""
        return f"{self.operator}{self.args!r}{self.kwargs!r}{self.grad_enabled}"

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments to call the operator with: tensors of zeros, which are valid indices, too."""
        return ([_with_tensors(value) for value in self.args],
                {name: _with_tensors(value) for name, value in self.kwargs})


def call_of(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OperatorCall | None:
    """Describe a call of an operator; return None if it allocates only its outputs, or cannot be repeated alone.

    Views, operators without tensors and collectives allocate nothing inside. Neither do pointwise operators on tensors
    of one type (a number counts 12 to 128 bytes), and products of single or double precision whose matrices BLAS can
    read as they are.
    """
    call = described(operator, args, kwargs) if _may_allocate(operator) else None
    if call is None:
        return None
    layouts = list(call.layouts())
    alike = len({layout.dtype for layout in layouts}) <= 1
    if not layouts or (alike and torch.Tag.pointwise in operator.tags):
        return None
    is_product = operator_type(_name(operator)) == "GEMM"
    return None if is_product and alike and all(_is_matrix_for_blas(layout) for layout in layouts) else call


def described(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OperatorCall | None:
    """Describe a call of an operator; return None if it has an argument that cannot be made again from its layout."""
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
        return torch.empty_strided(value.shape, value.stride, dtype=value.dtype).zero_()
    return [_with_tensors(part) for part in value] if isinstance(value, tuple) else value


def _is_matrix_for_blas(layout: Layout) -> bool:
    """Return whether BLAS reads a tensor's matrices as they are: rows or columns without gaps between elements."""
    if layout.dtype not in _EXACT_TYPES or len(layout.shape) < 2:
        return layout.dtype in _EXACT_TYPES
    (rows, columns), (down, right) = layout.shape[-2:], layout.stride[-2:]
    return (right == 1 and down >= max(1, columns)) or (down == 1 and right >= max(1, rows))
