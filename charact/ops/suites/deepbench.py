"""DeepBench: operations of networks of 2016 and 2017, in training and inference.

Its matrices are written (M, N, K) with K the inner dimension, as in charact. The kinds describe its other counts.
"""

import csv
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.resources import files

from charact.ops import Problem, parse_problem


def _gemm(row: dict[str, str]) -> str:
    form = "".join("t" if row[f"{factor}_transposed"] == "true" else "n" for factor in "ab")
    return f"gemm:{row['m']}x{row['n']}x{row['k']}" + ("" if form == "nn" else f":{form}")


def _convolution(row: dict[str, str]) -> str:
    return (f"convolution:{row['n']}x{row['c']}x{row['h']}x{row['w']}:{row['k']}x{row['filter_h']}x{row['filter_w']}"
            f":p{row['pad_h']}x{row['pad_w']}:s{row['stride_h']}x{row['stride_w']}")


def _rnn(row: dict[str, str]) -> str:
    cell = "relu" if row["cell"] == "vanilla" else row["cell"]
    return f"rnn:{cell}:{row['hidden']}x{row['batch']}x{row['timesteps']}"


def _sparse_gemm(row: dict[str, str]) -> str:
    return f"sparse_gemm:{row['m']}x{row['n']}x{row['k']}:s{row['sparsity']}"


_FILES: dict[str, Callable[[dict[str, str]], str]] = {
    "gemm": _gemm, "conv": _convolution, "rnn": _rnn, "sparse_gemm": _sparse_gemm,
}  # fmt: skip


@cache
def _problems() -> tuple[Problem, ...]:
    found = []
    for name, text in _FILES.items():
        lines = files("charact.ops.suites").joinpath("figures", f"{name}.csv").read_text(encoding="ascii").splitlines()
        found += [replace(parse_problem(text(row)), suite=SUITE.name, set=row["set"],
                          forward_only=row["set"] != "training") for row in csv.DictReader(lines)]
    return tuple(found)


class DeepBench:
    """All its problems of four kinds, repeated ones as often as they are listed; those of inference forward only."""

    name = "deepbench"
    source = "Baidu Research, DeepBench, code/kernels/*_problems.h (Apache-2.0)"
    sets = ("training", "inference_server", "inference_device")

    def problems(self) -> list[Problem]:
        """Return every problem, by kind."""
        return list(_problems())


SUITE = DeepBench()
