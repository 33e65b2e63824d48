"""DeepBench: operations of networks of 2016 and 2017, in training and inference.

Its matrices are written (M, N, K) with K the inner dimension, as in charact. The kinds describe its other counts.
"""

import csv
from dataclasses import replace
from functools import cache
from importlib.resources import files

from charact.ops import Problem, parse_problem


def _text(row: dict[str, str]) -> str:
    form = "".join("t" if row.get(f"{factor}_transposed") == "true" else "n" for factor in "ab")
    values = {**row, "form": "" if form == "nn" else f":{form}",
              "cell": "relu" if row.get("cell") == "vanilla" else row.get("cell")}
    return _FORMATS[row["file"]].format(**values)


_FORMATS = {
    "gemm": "gemm:{m}x{n}x{k}{form}",
    "conv": "convolution:{n}x{c}x{h}x{w}:{k}x{filter_h}x{filter_w}:p{pad_h}x{pad_w}:s{stride_h}x{stride_w}",
    "rnn": "rnn:{cell}:{hidden}x{batch}x{timesteps}",
    "sparse_gemm": "sparse_gemm:{m}x{n}x{k}:s{sparsity}",
}
"""Text of a problem, by the file of figures that lists it."""


@cache
def _problems() -> tuple[Problem, ...]:
    found = []
    for name in _FORMATS:
        lines = files("charact.ops.suites").joinpath("figures", f"{name}.csv").read_text(encoding="ascii").splitlines()
        found += [replace(parse_problem(_text(row | {"file": name})), suite=SUITE.name, set=row["set"],
                          forward_only=row["set"] != "training") for row in csv.DictReader(lines)]
    return tuple(found)


class _DeepBench:
    """All its problems of four kinds, repeated ones as often as they are listed; those of inference forward only."""

    name = "deepbench"
    source = "Baidu Research, DeepBench, code/kernels/*_problems.h (Apache-2.0)"
    sets = ("training", "inference_server", "inference_device")

    def problems(self) -> list[Problem]:
        return list(_problems())


SUITE = _DeepBench()
