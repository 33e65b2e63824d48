"""Two-dimensional convolutions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from charact.ops import DIRECTIONS, Kind, Prepared, Problem
from charact.ops.numerics import DTYPES, number_refusal, spread_indices, sum_tolerance
from charact.ops.parsing import check_elements, malformed, whole_numbers

UNFLOORED = "DeepBench: P = (H - R + 1 + 2 pad) / stride, not rounded"
_NUM_CHECKED = 4
"""Channels of a result that are checked, and images of a forward one: all pixels, including the first and the last."""


@dataclass(frozen=True)
class _Sizes:
    padding: tuple[int, int]
    stride: tuple[int, int]
    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int

    @property
    def p(self) -> int:
        """Height of the result."""
        return (self.h + 2 * self.padding[0] - self.r) // self.stride[0] + 1

    @property
    def q(self) -> int:
        """Width of the result."""
        return (self.w + 2 * self.padding[1] - self.s) // self.stride[1] + 1

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of input, weight and result."""
        return {"input": (self.n, self.c, self.h, self.w), "weight": (self.k, self.c, self.r, self.s),
                "output": (self.n, self.k, self.p, self.q)}


class _Convolution(Kind):
    """Images of N×C×H×W, K filters of R×S, no bias; `:p1` pads, `:s2` is the stride, or `:s2x1` by height and width.

    Of the forward result 4 images and 4 channels are checked, of gradients 4 channels (and 4 filters), with all pixels.
    """

    name = "convolution"
    syntax = "convolution:NxCxHxW:KxRxS[:pPAD][:sSTRIDE]"
    directions = DIRECTIONS

    def parse(self, sizes: str) -> Problem:
        """Return the problem from `8x3x224x224:64x7x7:p3:s2`."""
        match = re.fullmatch(r"([^:]*):([^:]*)(?::p([\dx]+))?(?::s([\dx]+))?", sizes)
        if match is None:
            raise malformed(sizes, self.syntax)
        images, filters, padding, stride = match.groups()
        size = _Sizes(_pair(padding, 0, self.syntax), _pair(stride, 1, self.syntax),
                       *whole_numbers(images, 4, self.syntax), *whole_numbers(filters, 3, self.syntax))
        if size.p < 1 or size.q < 1:
            raise malformed(f"{sizes}', whose filter is larger than its image,", self.syntax)
        check_elements(sizes, *size.shapes.values())
        text = f"convolution:{size.n}x{size.c}x{size.h}x{size.w}:{size.k}x{size.r}x{size.s}"
        text += _text("p", size.padding, 0) + _text("s", size.stride, 1)
        return Problem(self.name, text, {name: getattr(size, name) for name in "nchwkrs"} | {
            "pad_h": size.padding[0], "pad_w": size.padding[1], "stride_h": size.stride[0],
            "stride_w": size.stride[1]})

    def flop(self, problem: Problem, direction: str) -> float:
        """Return 2·N·K·P·Q·C·R·S in each direction, with rounded P and Q, including products with padding."""
        size = _sizes(problem)
        return 2.0 * size.n * size.k * size.p * size.q * size.c * size.r * size.s

    def published_flop(self, problem: Problem, direction: str) -> tuple[float, str] | None:
        """Return DeepBench's count, with P and Q not rounded; None if it is the same."""
        size = _sizes(problem)
        p = (size.h - size.r + 1 + 2 * size.padding[0]) / size.stride[0]
        q = (size.w - size.s + 1 + 2 * size.padding[1]) / size.stride[1]
        if problem.suite != "deepbench" or (p, q) == (size.p, size.q):
            return None
        return 2.0 * p * q * size.n * size.k * size.c * size.r * size.s, UNFLOORED

    def num_bytes(self, problem: Problem, direction: str, itemsize: int) -> float:
        """Return the bytes of input, weight and result: in each direction two are read and one is written."""
        return float(itemsize * sum(torch.Size(shape).numel() for shape in _sizes(problem).shapes.values()))

    def refusal(self, problem: Problem, precision: str, device: torch.device) -> str | None:
        return number_refusal(precision, device, int8="PyTorch has no plain int8 convolution: use --precision bf16")

    def prepare(self, problem: Problem, direction: str, precision: str, device: torch.device) -> Prepared:
        size, dtype = _sizes(problem), DTYPES[precision]
        generator = torch.Generator(device).manual_seed(0)
        names = {"forward": ("input", "weight"), "backward_input": ("output", "weight"),
                 "backward_weight": ("output", "input")}[direction]

        def inputs() -> Sequence[torch.Tensor]:
            return [torch.randn(size.shapes[name], dtype=dtype, device=device, generator=generator) for name in names]

        images, filters, channels = (spread_indices(count, _NUM_CHECKED).to(device)
                                     for count in (size.n, size.k, size.c))

        def reference(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            first = first[:, filters] if direction == "backward_weight" else first[images]
            second = second[filters] if direction == "forward" else second[:, channels]
            return _call(size, direction, first.cpu().double(), second.cpu().double())

        def compared(result: torch.Tensor) -> torch.Tensor:
            rows = filters if direction == "backward_weight" else images
            return result[rows][:, filters if direction == "forward" else channels]

        num_terms = {"forward": size.c * size.r * size.s, "backward_input": size.k * size.r * size.s,
                     "backward_weight": size.n * size.p * size.q}[direction]
        return Prepared(inputs, partial(_call, size, direction), reference, compared,
                        sum_tolerance(precision, num_terms))


def _call(size: _Sizes, direction: str, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    if direction == "forward":
        return functional.conv2d(first, second, None, size.stride, size.padding)
    gradients: torch.Tensor
    if direction == "backward_input":
        shape = (first.shape[0], second.shape[1], size.h, size.w)
        gradients = conv2d_input(shape, second, first, size.stride, size.padding)  # type: ignore[no-untyped-call]
    else:
        shape = (first.shape[1], second.shape[1], size.r, size.s)
        gradients = conv2d_weight(second, shape, first, size.stride, size.padding)  # type: ignore[no-untyped-call]
    return gradients


def _sizes(problem: Problem) -> _Sizes:
    sizes = {name: int(value) for name, value in problem.sizes.items()}
    return _Sizes((sizes["pad_h"], sizes["pad_w"]), (sizes["stride_h"], sizes["stride_w"]),
                  *(sizes[name] for name in "nchwkrs"))


def _pair(text: str | None, default: int, syntax: str) -> tuple[int, int]:
    if text is None or text == str(default):
        return default, default
    parts = text.split("x")
    if len(parts) > 2 or not all(re.fullmatch(r"[0-9]{1,7}", part) and default <= int(part) <= 10**6 for part in parts):
        raise malformed(text, syntax)
    return int(parts[0]), int(parts[-1])


def _text(letter: str, pair: tuple[int, int], default: int) -> str:
    if pair == (default, default):
        return ""
    return f":{letter}{pair[0]}" if pair[0] == pair[1] else f":{letter}{pair[0]}x{pair[1]}"


KIND = _Convolution()
