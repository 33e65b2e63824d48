"""Sparse products with a growing share of zeros, to find where they are faster than dense ones of the same size."""

from dataclasses import replace

from charact.ops import Problem, parse_problem

_SIZES = ("1760x128x1760", "7680x64x2560")  # of DeepBench's
_SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)


class _Crossover:
    """Two sizes of DeepBench, each at eight shares of zeros."""

    name = "crossover"
    source = "sizes of DeepBench (Baidu Research, Apache-2.0)"
    sets: tuple[str, ...] = ()

    def problems(self) -> list[Problem]:
        return [replace(parse_problem(f"sparse_gemm:{sizes}:s{sparsity}"), suite=self.name)
                for sizes in _SIZES for sparsity in _SPARSITIES]


SUITE = _Crossover()
