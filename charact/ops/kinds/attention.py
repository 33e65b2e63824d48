"""Scaled dot-product attention: softmax(q kᵀ / √d) v, in each head of each sequence.

FLOP count both products, only of scores that a causal mask keeps (a query sees the keys up to its own position). The
backward pass has five products: the scores again, as flash attention does, and the gradients by queries, keys, values
and scores. PyTorch's own count includes the masked scores and is reported, too.

Tolerance: that of sums as long as the head is wide and as there are keys, times 4 for the softmax between them, whose
weights are rounded as well. Only the first heads are compared, because heads are independent.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from charact.ops import Kind, Prepared, Problem
from charact.ops.numerics import DTYPES, flattened, gradients, number_refusal, sum_tolerance, with_graph
from charact.ops.parsing import check_elements, malformed, whole_numbers

_NAMES = ("batch", "heads", "queries", "keys", "width")
_CHECKED_SCORES = 2**24


class _Attention(Kind):
    name = "attention"
    syntax = "attention:BATCHxHEADSxQUERIESxKEYSxWIDTH[:causal]"
    directions = "forward", "backward_input"

    def parse(self, sizes: str) -> Problem:
        """Return the problem from e.g. `8x12x1024x1024x64:causal`."""
        numbers, colon, word = sizes.partition(":")
        if colon and word != "causal":
            raise malformed(sizes, self.syntax)
        lengths = whole_numbers(numbers, len(_NAMES), self.syntax)
        check_elements(sizes, lengths)  # no tensor has more: neither keys nor the scores
        return Problem(self.name, f"{self.name}:{'x'.join(map(str, lengths))}{':causal' if colon else ''}",
                       dict(zip(_NAMES, lengths, strict=True)) | {"causal": "yes" if colon else "no"})

    def flop(self, problem: Problem, direction: str) -> float:
        """Return the FLOP of the matrix products, without masked scores of causal attention.

        2 products forward, 5 backward: the scores are computed again there.
        """
        batch, heads, queries, keys, width = problem.numbers(*_NAMES)
        seen = queries * keys
        if problem.sizes["causal"] == "yes":
            full = min(queries, keys)
            seen = full * (full + 1) // 2 + (queries - full) * keys
        return 2.0 * (2 if direction == "forward" else 5) * batch * heads * seen * width

    def published_flop(self, problem: Problem, direction: str) -> tuple[float, str] | None:
        """Return PyTorch's count of causal attention.

        *Source*: torch/utils/flop_counter.py.
        """
        if problem.sizes["causal"] == "no":
            return None
        products = 2 if direction == "forward" else 5
        return 2.0 * products * math.prod(problem.numbers(*_NAMES)), "PyTorch: masked scores, too"

    def num_bytes(self, problem: Problem, direction: str, itemsize: int) -> float:
        """Return the bytes of queries, keys, values and result; backward also of the gradients. No scores."""
        batch, heads, queries, keys, width = problem.numbers(*_NAMES)
        times = 2 if direction == "forward" else 4
        return float(itemsize * times * batch * heads * (queries + keys) * width)

    def refusal(self, problem: Problem, precision: str, device: torch.device) -> str | None:
        return number_refusal(precision, device, int8="PyTorch's attention takes no int8 numbers: use --precision bf16")

    def prepare(self, problem: Problem, direction: str, precision: str, device: torch.device) -> Prepared:
        """Return attention over normal random queries, keys and values; PyTorch chooses the kernel."""
        batch, heads, queries, keys, width = problem.numbers(*_NAMES)
        causal = problem.sizes["causal"] == "yes"
        generator = torch.Generator(device).manual_seed(0)

        def normal(length: int) -> Tensor:
            numbers = torch.randn(batch, heads, length, width, generator=generator, device=device)
            return numbers.to(DTYPES[precision]).requires_grad_(direction != "forward")

        def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return scaled_dot_product_attention(query, key, value, is_causal=causal)

        def inputs() -> list[Tensor]:
            tensors = [normal(queries), normal(keys), normal(keys)]
            return tensors if direction == "forward" else with_graph(run, tensors, generator)

        num_heads = max(1, min(batch * heads, _CHECKED_SCORES // (queries * keys)))
        call: Any = run if direction == "forward" else gradients
        return Prepared(
            inputs, call, lambda *tensors: _reference(num_heads, causal, *tensors),
            lambda result: flattened([_heads(part, num_heads) for part in
                                      (result if isinstance(result, tuple) else (result,))]),
            4 * sum_tolerance(precision, width + keys))


def _heads(tensor: Tensor, number: int) -> Tensor:
    return tensor.flatten(0, 1)[:number]


def _reference(num_heads: int, causal: bool, *tensors: Tensor) -> Tensor:
    """Return outputs, or gradients if an output and its gradient come first; a block of queries at a time."""
    backward = len(tensors) == 5
    exact = [_heads(tensor.detach(), num_heads).double().cpu() for tensor in tensors]
    query, key, value = (tensor.requires_grad_(backward) for tensor in exact[-3:])
    at_a_time = max(1, _CHECKED_SCORES // (num_heads * key.shape[1]))
    outputs, sums = [], [torch.zeros_like(tensor) for tensor in (query, key, value)]
    for first in range(0, query.shape[1], at_a_time):
        rows = slice(first, first + at_a_time)
        with torch.set_grad_enabled(backward):
            output = _attended(query[:, rows], key, value, first, causal)
        outputs.append(output.detach())
        if backward:
            parts = torch.autograd.grad(output, (query, key, value), exact[1][:, rows])
            sums = [total + part for total, part in zip(sums, parts, strict=True)]
    return flattened(sums if backward else [torch.cat(outputs, dim=1)])


def _attended(query: Tensor, key: Tensor, value: Tensor, first: int, causal: bool) -> Tensor:
    scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[2])
    if causal:
        places = torch.arange(first, first + query.shape[1])[:, None]
        scores = scores.masked_fill(torch.arange(key.shape[1]) > places, -math.inf)
    return scores.softmax(dim=2) @ value


KIND = _Attention()
