"""Batch normalization of images with the batch's own statistics, as in training, and layer normalization of rows.

FLOP are not counted, as in PyTorch's formulas and published counts: means and pointwise work are bound by bytes.

Tolerance: that of sums as long as those of a mean. Gradients by the weights of layer normalization are sums over all
rows, which some libraries round at each: that grows as the root of their number. Only the first channels or rows are
compared, because they are independent.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, layer_norm

from charact.ops import DIRECTIONS, Kind, Prepared, Problem
from charact.ops.numerics import DTYPES, ROUNDING, flattened, gradients, sum_tolerance, with_graph
from charact.ops.parsing import check_elements, malformed, whole_numbers

_NAMES = {"batch_norm": ("batch", "channels", "height", "columns"), "layer_norm": ("rows", "columns")}
_CHECKED_ELEMENTS = 2**23


class _Normalization(Kind):
    name = "normalization"
    syntax = "normalization:batch_norm:BATCHxCHANNELSxHEIGHTxWIDTH or normalization:layer_norm:ROWSxWIDTH"
    directions = DIRECTIONS

    def parse(self, sizes: str) -> Problem:
        """Return the problem from e.g. `layer_norm:8192x768`."""
        norm, _, numbers = sizes.partition(":")
        if norm not in _NAMES:
            raise malformed(sizes, self.syntax)
        lengths = whole_numbers(numbers, len(_NAMES[norm]), self.syntax)
        check_elements(sizes, lengths)
        return Problem(self.name, f"{self.name}:{norm}:{'x'.join(map(str, lengths))}",
                       {"norm": norm} | dict(zip(_NAMES[norm], lengths, strict=True)))

    def num_bytes(self, problem: Problem, direction: str, itemsize: int) -> float:
        """Return the bytes of input and output, or input and both gradients, with scale and shift."""
        shape, num_weights = _shape(problem)
        elements = shape.numel()
        numbers = {"forward": 2 * elements + 2 * num_weights, "backward_input": 3 * elements + num_weights,
                   "backward_weight": 2 * elements + 2 * num_weights}
        return float(itemsize * numbers[direction])

    def refusal(self, problem: Problem, precision: str, device: torch.device) -> str | None:
        if problem.sizes["norm"] == "batch_norm" and _shape(problem)[0].numel() == problem.sizes["channels"]:
            return "a channel of one number has no variance: choose a larger batch or image"
        return super().refusal(problem, precision, device)

    def prepare(self, problem: Problem, direction: str, precision: str, device: torch.device) -> Prepared:
        """Return normal random input; scale and shift normal around 1 and 0."""
        shape, num_weights = _shape(problem)
        generator = torch.Generator(device).manual_seed(0)

        def normal(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=generator, device=device)

        def inputs() -> list[Tensor]:
            scale, shift = 1 + 0.1 * normal(num_weights), 0.1 * normal(num_weights)
            tensors = [tensor.to(DTYPES[precision]) for tensor in (normal(*shape), scale, shift)]
            if direction == "forward":
                return tensors
            for tensor in tensors[:1] if direction == "backward_input" else tensors[1:]:
                tensor.requires_grad_()
            return with_graph(_normalized, tensors, generator)

        call: Any = _normalized if direction == "forward" else gradients
        if len(shape) == 4:
            return Prepared(inputs, call, *_check_channels(shape),
                            sum_tolerance(precision, shape.numel() // num_weights))
        tolerance = sum_tolerance(precision, sum(shape))
        if direction == "backward_weight":
            tolerance += ROUNDING[precision] * shape[0]**0.5
        return Prepared(inputs, call, *_check_rows(shape, direction), tolerance)


def _shape(problem: Problem) -> tuple[torch.Size, int]:
    shape = torch.Size(problem.numbers(*_NAMES[str(problem.sizes["norm"])]))
    return shape, shape[1]


def _normalized(inputs: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    if inputs.dim() == 4:
        return batch_norm(inputs, None, None, scale, shift, training=True)
    return layer_norm(inputs, inputs.shape[1:], scale, shift)


def _check_channels(shape: torch.Size) -> tuple[Any, Any]:
    channels = slice(max(1, _CHECKED_ELEMENTS * shape[1] // shape.numel()))

    def reference(*tensors: Tensor) -> Tensor:
        return flattened(_exact(*(tensor[:, channels] if tensor.dim() == 4 else tensor[channels]
                                  for tensor in _leaves(tensors))))

    def compared(result: Any) -> Tensor:
        return flattened([part[:, channels] if part.dim() == 4 else part[channels] for part in _parts(result)])

    return reference, compared


def _check_rows(shape: torch.Size, direction: str) -> tuple[Any, Any]:
    """Return reference and compared part of the first rows, or the sum over all rows."""
    at_a_time = max(1, _CHECKED_ELEMENTS // shape[1])

    def exact(tensors: tuple[Tensor, ...], first: int) -> list[Tensor]:
        rows = slice(first, first + at_a_time)
        return _exact(*(tensor[rows] if tensor.dim() == 2 else tensor for tensor in _leaves(tensors)))

    if direction != "backward_weight":
        return (lambda *tensors: flattened(exact(tensors, 0)),
                lambda result: flattened([part[:at_a_time] for part in _parts(result)]))
    return (lambda *tensors: flattened([sum(parts) for parts in zip(
        *(exact(tensors, first) for first in range(0, shape[0], at_a_time)), strict=True)]), flattened)


def _leaves(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tensors if len(tensors) == 3 else tensors[1:]


def _parts(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _exact(*tensors: Tensor) -> list[Tensor]:
    *gradient, inputs, scale, shift = tensors
    leaves = [tensor.detach().double().cpu().requires_grad_(tensor.requires_grad) for tensor in (inputs, scale, shift)]
    with torch.enable_grad():
        result = _normalized(*leaves)
    return list(gradients(result, gradient[0].double().cpu(), *leaves)) if gradient else [result]


KIND = _Normalization()
