"""Embedding lookups: rows of a table by word indices, and the gradient by the table, which sums over each row.

Words follow Zipf's law, as in a text, or a uniform distribution. FLOP are not counted: a lookup has none, and the
gradient's sums are bound by bytes.

Tolerance: a look-up is exact. A row of the gradient is a sum of as many numbers as the word occurs, which some devices
round at every addition: in the commonest word's row the error grows as the root of their number.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from charact.datasets._common.vocabulary import zipf_tokens
from charact.ops import Kind, Prepared, Problem
from charact.ops.numerics import DTYPES, ROUNDING, flattened, gradients, sum_tolerance, with_graph
from charact.ops.parsing import check_elements, malformed, whole_numbers

_NAMES = ("words", "width", "tokens")
_EXPONENTS = {"zipf": 1.0, "uniform": 0.0}
_CHECKED_ELEMENTS = 2**23
_INDEX_BYTES = 8


class _Embedding(Kind):
    name = "embedding"
    syntax = "embedding:WORDSxWIDTHxTOKENS[:zipf|:uniform]"
    directions = "forward", "backward_weight"

    def parse(self, sizes: str) -> Problem:
        """Return the problem from e.g. `50257x768x8192`."""
        numbers, colon, word = sizes.partition(":")
        if colon and word not in _EXPONENTS:
            raise malformed(sizes, self.syntax)
        words, width, tokens = whole_numbers(numbers, len(_NAMES), self.syntax)
        check_elements(sizes, (words, width), (tokens, width))
        distribution = word or "zipf"
        return Problem(self.name, f"{self.name}:{words}x{width}x{tokens}:{distribution}",
                       {"words": words, "width": width, "tokens": tokens, "distribution": distribution})

    def num_bytes(self, problem: Problem, direction: str, itemsize: int) -> float:
        """Return the bytes of word indices and output rows; of the table the rows read, or all for the gradient."""
        words, width, tokens = problem.numbers(*_NAMES)
        rows = tokens + (min(words, tokens) if direction == "forward" else words)
        return float(_INDEX_BYTES * tokens + itemsize * width * rows)

    def prepare(self, problem: Problem, direction: str, precision: str, device: torch.device) -> Prepared:
        words, width, tokens = problem.numbers(*_NAMES)
        exponent = _EXPONENTS[str(problem.sizes["distribution"])]
        generator, drawing = torch.Generator(device).manual_seed(0), np.random.default_rng(0)
        dtype = DTYPES[precision]

        def inputs() -> list[Tensor]:
            numbers = torch.from_numpy(zipf_tokens(drawing, tokens, words, exponent)).to(device)
            table = torch.randn(words, width, generator=generator, device=device).to(dtype)
            if direction == "forward":
                return [numbers, table]
            return with_graph(embedding, [numbers, table.requires_grad_()], generator)

        if direction == "forward":
            few = slice(max(1, _CHECKED_ELEMENTS // width))
            return Prepared(inputs, embedding, lambda numbers, table: table[numbers[few]].double().cpu(),
                            lambda result: result[few], 0.0)
        columns = slice(max(1, _CHECKED_ELEMENTS // words))

        def reference(_: Tensor, gradient: Tensor, numbers: Tensor, table: Tensor) -> Tensor:
            exact = gradient[:, columns].double().cpu()
            return flattened([exact.new_zeros(words, exact.shape[1]).index_add_(0, numbers.cpu(), exact)])

        commonest = tokens / float(np.sum(np.arange(1, words + 1) ** -exponent))
        call: Any = gradients
        return Prepared(inputs, call, reference, lambda result: flattened([result[0][:, columns]]),
                        sum_tolerance(precision, tokens) + ROUNDING[precision] * commonest**0.5)


KIND = _Embedding()
