"""Products of a sparse matrix and a dense one."""

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch

from charact.core.errors import UserError
from charact.ops import Kind, Prepared, Problem
from charact.ops.numerics import DTYPES, checked_product, number_refusal, sum_tolerance
from charact.ops.parsing import check_elements, malformed, whole_numbers

LAYOUTS = ("csr", "csc", "coo", "bsr", "dense")
"""Storage formats of A: by rows, by columns, by coordinates, in blocks; dense for comparison."""
BLOCK = 16
"""Side of the blocks of bsr."""
DEEPBENCH = "DeepBench: 2·M·N·K times the share of zeros, on devices half of that"
DENSITY = "given as density, the share of non-zeros"
_INDEX_BYTES = 8


class _SparseGemm(Kind):
    """C = A B, with a sparse A of M×K and a dense B of K×N, as in DeepBench: the last size is the inner one.

    `:s0.9` is the share of zeros (DeepBench's sparsity), `:d0.1` the share of non-zeros (SciPy's density). Non-zeros,
    rounded to a whole number, are at uniformly random positions. In bsr whole blocks of 16×16 are zero or not. Some
    rows and columns are checked, including the first and the last.
    """

    name = "sparse_gemm"
    syntax = "sparse_gemm:MxNxK:sZEROS|dNONZEROS[:csr|csc|coo|bsr|dense]"

    def parse(self, sizes: str) -> Problem:
        """Return the problem from `7680x1500x2560:s0.95` or `7680x1500x2560:d0.05:coo`."""
        match = re.fullmatch(r"([^:]*):([sd])(\d*\.?\d+)(?::(\w+))?", sizes)
        if match is None or (match[4] or LAYOUTS[0]) not in LAYOUTS:
            raise malformed(sizes, self.syntax)
        m, n, k = whole_numbers(match[1], 3, self.syntax)
        check_elements(sizes, (m, k), (k, n), (m, n))
        share = float(match[3])
        sparsity = round(share if match[2] == "s" else 1 - share, 10)
        zeros = f"{sparsity:.10f}".rstrip("0").rstrip(".")  # `g` writes small shares as 1e-06, which does not parse
        text = f"sparse_gemm:{m}x{n}x{k}:s{zeros}" + (f":{match[4]}" if match[4] else "")
        problem = Problem(self.name, text, {"m": m, "n": n, "k": k, "sparsity": sparsity,
                                            "layout": match[4] or LAYOUTS[0]},
                          convention=DENSITY if match[2] == "d" else None)
        if not 0 <= sparsity < 1 or num_nonzeros(problem) == 0:
            raise UserError(f"--problem: '{sizes[:60]}' leaves no number that is not zero: s is the share of zeros, d "
                            "of the others, from 0 to 1")
        return problem

    def flop(self, problem: Problem, direction: str) -> float:
        """Return 2·N for each non-zero number; in the dense layout, 2·M·N·K."""
        m, n, k, _, layout = _sizes(problem)
        return 2.0 * n * (m * k if layout == "dense" else num_nonzeros(problem))

    def published_flop(self, problem: Problem, direction: str) -> tuple[float, str] | None:
        """Return DeepBench's count, which multiplies by the share of zeros."""
        if problem.suite != "deepbench" or problem.sizes["layout"] == "dense":
            return None
        m, n, k, sparsity, _ = _sizes(problem)
        factor = 1.0 if problem.set == "inference_device" else 2.0
        return factor * m * n * k * sparsity, DEEPBENCH

    def num_bytes(self, problem: Problem, direction: str, itemsize: int) -> float:
        """Return the bytes of A's numbers and indices (of 8 bytes) and B read, and C written."""
        m, n, k, _, layout = _sizes(problem)
        count = num_nonzeros(problem)
        places = {"csr": count + m + 1, "csc": count + k + 1, "coo": 2 * count,
                  "bsr": count // BLOCK**2 + m // BLOCK + 1, "dense": 0}[layout]
        kept = m * k if layout == "dense" else count
        return float((kept + k * n + m * n) * itemsize + places * _INDEX_BYTES)

    def sparsity_frac(self, problem: Problem) -> float:
        """Return the share of zeros, as it is after rounding."""
        m, _, k, _, _ = _sizes(problem)
        return 1 - num_nonzeros(problem) / (m * k)

    def refusal(self, problem: Problem, precision: str, device: torch.device) -> str | None:
        m, _, k, _, layout = _sizes(problem)
        if layout == "bsr" and (m % BLOCK or k % BLOCK):
            return f"bsr needs M and K that {BLOCK} divides, not {m} and {k}: use --layouts csr"
        if num_nonzeros(problem) == 0:
            return f"with so many zeros none of the {BLOCK}×{BLOCK} blocks of bsr is left: use --layouts csr"
        if device.type == "cuda" and layout == "coo" and precision in ("bf16", "fp16"):
            return "on a GPU PyTorch multiplies coo matrices in float32 only: use --precision fp32, or --layouts csr"
        if device.type == "cpu" and precision == "bf16" and layout not in ("coo", "dense"):
            return f"on a CPU PyTorch multiplies {layout} matrices in float32 only: use --precision fp32"
        return number_refusal(precision, device, int8="PyTorch has no sparse products of int8: use --precision fp32")

    def prepare(self, problem: Problem, direction: str, precision: str, device: torch.device) -> Prepared:
        m, n, k, _, layout = _sizes(problem)
        dtype = DTYPES[precision]
        generator = torch.Generator(device).manual_seed(0)

        def inputs() -> Sequence[torch.Tensor]:
            sparse = _sparse(problem, dtype, generator)
            return [sparse, torch.randn(k, n, dtype=dtype, device=device, generator=generator)]

        # On a CPU the sums of coo have the numbers' own type.
        kept_in = precision if layout == "coo" and device.type == "cpu" else "fp32"
        return Prepared(inputs, torch.mm, *checked_product(m, n, device),
                        sum_tolerance(precision, k, kept_in=kept_in))


def with_layouts(problem: Problem, layouts: Sequence[str]) -> list[Problem]:
    """Return a problem in each layout; one whose text has a layout is returned as it is."""
    if problem.text.endswith(tuple(f":{layout}" for layout in LAYOUTS)):
        return [problem]
    return [replace(problem, text=f"{problem.text}:{layout}", sizes={**problem.sizes, "layout": layout})
            for layout in layouts]


def num_nonzeros(problem: Problem) -> int:
    """Return the number of non-zeros of A; in bsr those of whole blocks."""
    m, _, k, sparsity, layout = _sizes(problem)
    unit = BLOCK**2 if layout == "bsr" else 1
    return round(m * k / unit * (1 - sparsity)) * unit


def _sizes(problem: Problem) -> tuple[int, int, int, float, str]:
    sizes = problem.sizes
    return int(sizes["m"]), int(sizes["n"]), int(sizes["k"]), float(sizes["sparsity"]), str(sizes["layout"])


def _sparse(problem: Problem, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Return a matrix in the problem's layout, with its number of non-zeros, or of blocks of them."""
    m, _, k, _, layout = _sizes(problem)
    device, side = generator.device, BLOCK if layout == "bsr" else 1
    number, count = m * k // side**2, num_nonzeros(problem) // side**2
    share = count / number
    likely = min(1.0, share + 8 * (share / number) ** 0.5)  # more than are needed: eight standard deviations
    drawn = (torch.rand(number, device=device, generator=generator) < likely).nonzero().squeeze(1)
    places = drawn[torch.randperm(len(drawn), device=device, generator=generator)[:count]]
    mask = torch.zeros(number, dtype=torch.bool, device=device).index_fill_(0, places, True).view(m // side, k // side)
    if side > 1:
        mask = mask.repeat_interleave(side, 0).repeat_interleave(side, 1)
    numbers = torch.randn(m, k, dtype=dtype, device=device, generator=generator)
    # A drawn number can be zero itself, which would be one non-zero too few.
    dense = torch.where(numbers == 0, 1.0, numbers).mul_(mask)
    if layout in ("dense", "coo"):
        return dense if layout == "dense" else dense.to_sparse().coalesce()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse .* tensor support is in beta")
        if layout == "bsr":
            return dense.to_sparse_bsr((BLOCK, BLOCK))
        return dense.to_sparse_csr() if layout == "csr" else dense.to_sparse_csc()


KIND = _SparseGemm()
