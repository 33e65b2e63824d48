"""Basic operations of Vo's benchmark: products of dense and sparse matrices, a convolutional network, recurrence.

A triple (M, N, K) means the product of M×N and N×K there, whose inner dimension is N, where DeepBench, from which the
sizes come, means M×K and K×N. FLOP are the same; what is run has the shapes of Vo's program. The number of a sparse
triple is SciPy's density there, the share of non-zeros, where DeepBench's is the share of zeros. That program computes
in float64 and times a single call with the making of its inputs; here only the operation is timed.
"""

from dataclasses import replace

from charact.ops import Problem, parse_problem

_DENSE = ((3072, 128, 1024), (5124, 9124, 2560), (2560, 64, 2560), (7860, 64, 2560), (1760, 128, 1760))
_SPARSE = ((10752, 1, 3584, 0.9), (7680, 1500, 2560, 0.95), (7680, 2, 2560, 0.95), (7680, 1, 2560, 0.95))
_CONVOLUTIONS = ("64x3x32x32:2048x3x3:p1:s2", "64x2048x8x8:128x3x3:p1:s2", "64x128x2x2:64x3x3:p1:s2")
_DENSE_LAYER = (64, 64, 10)
_RECURRENT = ("relu:1760x16x50", "lstm:512x16x25", "gru:512x32x1")
_SAME = "TensorFlow's SAME pads this stride at the bottom and right only; here all around, for as many FLOP"


def _dense(m: int, n: int, k: int, part: str) -> Problem:
    return _part(f"gemm:{m}x{k}x{n}", part, f"(M, N, K) = ({m}, {n}, {k}), of which N is the inner dimension")


def _part(text: str, part: str, convention: str | None = None) -> Problem:
    return replace(parse_problem(text), suite=SUITE.name, set=part, convention=convention)


class _Vo:
    """DMM, SMM and Convolve2D; and the RNN that was announced and left out, in sizes of DeepBench's."""

    name = "vo"
    source = "Vo, benchmark of basic operations and models, Aalto University: gemm.py, convolution.py"
    sets = ("dmm", "smm", "convolve2d", "rnn")

    def problems(self) -> list[Problem]:
        inner = "of which N is the inner dimension"
        return [
            *(_dense(m, n, k, "dmm") for m, n, k in _DENSE),
            *(_part(f"sparse_gemm:{m}x{k}x{n}:d{density}", "smm",
                    f"(M, N, K) = ({m}, {n}, {k}), {inner}; {density} is the share of non-zeros")
              for m, n, k, density in _SPARSE),
            *(_part(f"convolution:{sizes}", "convolve2d", _SAME) for sizes in _CONVOLUTIONS),
            _dense(*_DENSE_LAYER, "convolve2d"),
            *(_part(f"rnn:{sizes}", "rnn") for sizes in _RECURRENT),
        ]


SUITE = _Vo()
