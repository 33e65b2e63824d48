"""Products of dense matrices."""

from collections.abc import Sequence
from functools import cache

import torch

from charact.ops import Kind, Prepared, Problem
from charact.ops.numerics import DTYPES, checked_product, number_refusal, sum_tolerance
from charact.ops.parsing import check_elements, malformed, whole_numbers

_FORMS = ("nn", "nt", "tn", "tt")


class _Gemm(Kind):
    """C = A B, with A of M×K and B of K×N: the last size is the inner one, as in BLAS and DeepBench.

    `:tn` stores A transposed, `:nt` B. With int8 factors, C has int32. Some rows and columns are checked, including the
    first and the last.
    """

    name = "gemm"
    syntax = "gemm:MxNxK[:nt|tn|tt]"

    def parse(self, sizes: str) -> Problem:
        """Return the problem from `3072x128x1024` or `3072x128x1024:tn`."""
        numbers, colon, form = sizes.partition(":")
        m, n, k = whole_numbers(numbers, 3, self.syntax)
        if (form or "nn") not in _FORMS or (colon and not form):
            raise malformed(sizes, self.syntax)
        check_elements(sizes, (m, k), (k, n), (m, n))
        form = form or "nn"
        text = f"gemm:{m}x{n}x{k}" + ("" if form == "nn" else f":{form}")
        return Problem(self.name, text, {"m": m, "n": n, "k": k, "form": form})

    def flop(self, problem: Problem, direction: str) -> float:
        m, n, k = problem.numbers("m", "n", "k")
        return 2.0 * m * n * k

    def num_bytes(self, problem: Problem, direction: str, itemsize: int) -> float:
        m, n, k = problem.numbers("m", "n", "k")
        return float((m * k + k * n) * itemsize + m * n * (4 if itemsize == 1 else itemsize))

    def refusal(self, problem: Problem, precision: str, device: torch.device) -> str | None:
        m, n, k = problem.numbers("m", "n", "k")
        if precision == "int8" and device.type == "cuda" and (m <= 16 or n % 8 or k % 8):
            return f"int8 on CUDA needs M above 16, N and K that 8 divides, not {m}x{n}x{k}: use --precision bf16"
        if precision == "int8" and device.type == "cpu" and _int8_overflows():
            return ("int8 products are wrong on this CPU (without VNNI instructions, oneDNN adds in 16 bits, which "
                    "overflow): use --precision fp32")
        return number_refusal(precision, device)

    def prepare(self, problem: Problem, direction: str, precision: str, device: torch.device) -> Prepared:
        m, n, k = problem.numbers("m", "n", "k")
        form, dtype = str(problem.sizes["form"]), DTYPES[precision]
        generator = torch.Generator(device).manual_seed(0)

        def inputs() -> Sequence[torch.Tensor]:
            return [_factor(m, k, form[0], dtype, generator), _factor(k, n, form[1], dtype, generator)]

        return Prepared(inputs, torch._int_mm if precision == "int8" else torch.mm, *checked_product(m, n, device),
                        sum_tolerance(precision, k))


@cache
def _int8_overflows() -> bool:
    largest = torch.full((32, 64), 127, dtype=torch.int8)
    return bool((torch._int_mm(largest, largest.t().contiguous()) != 64 * 127**2).any())


def _factor(rows: int, columns: int, form: str, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    shape = (rows, columns) if form == "n" else (columns, rows)
    if dtype == torch.int8:
        numbers = torch.randint(-128, 128, shape, dtype=dtype, device=generator.device, generator=generator)
    else:
        numbers = torch.randn(shape, dtype=dtype, device=generator.device, generator=generator)
    return numbers if form == "n" else numbers.t()


KIND = _Gemm()
