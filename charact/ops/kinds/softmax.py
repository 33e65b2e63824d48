"""Softmax of rows, and its gradient by the input.

FLOP are not counted, as in PyTorch's formulas: exponentials and sums are bound by bytes.

Tolerance: that of sums as long as a row. Compared are the first rows, which do not depend on others.
"""

from typing import Any

import torch
from torch import Tensor

from charact.ops import Kind, Prepared, Problem
from charact.ops.numerics import DTYPES, flattened, gradients, sum_tolerance, with_graph
from charact.ops.parsing import check_elements, whole_numbers

_CHECKED_ELEMENTS = 2**23


class _Softmax(Kind):
    name = "softmax"
    syntax = "softmax:ROWSxWIDTH"
    directions = "forward", "backward_input"

    def parse(self, sizes: str) -> Problem:
        """Return the problem from e.g. `8192x50257`."""
        rows, width = whole_numbers(sizes, 2, self.syntax)
        check_elements(sizes, (rows, width))
        return Problem(self.name, f"{self.name}:{rows}x{width}", {"rows": rows, "width": width})

    def num_bytes(self, problem: Problem, direction: str, itemsize: int) -> float:
        rows, width = problem.numbers("rows", "width")
        return float(itemsize * (2 if direction == "forward" else 3) * rows * width)

    def prepare(self, problem: Problem, direction: str, precision: str, device: torch.device) -> Prepared:
        rows, width = problem.numbers("rows", "width")
        generator = torch.Generator(device).manual_seed(0)
        few = slice(max(1, _CHECKED_ELEMENTS // width))

        def inputs() -> list[Tensor]:
            numbers = torch.randn(rows, width, generator=generator, device=device).to(DTYPES[precision])
            return [numbers] if direction == "forward" else with_graph(_softmax, [numbers.requires_grad_()], generator)

        def reference(*tensors: Tensor) -> Tensor:
            exact = [tensor[few].detach().double().cpu() for tensor in tensors]
            result = _softmax(exact[-1])
            if direction == "forward":
                return flattened([result])
            inner = (exact[1] * result).sum(dim=1, keepdim=True)
            return flattened([(exact[1] - inner) * result])

        call: Any = _softmax if direction == "forward" else gradients
        return Prepared(
            inputs, call, reference,
            lambda result: flattened([(result if direction == "forward" else result[0])[few]]),
            sum_tolerance(precision, width))


def _softmax(inputs: Tensor) -> Tensor:
    return inputs.softmax(dim=1)


KIND = _Softmax()
