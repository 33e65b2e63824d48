"""Findings about operators that compute more than their result needs."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pandas as pd

from charact.analysis.findings._finding import Finding, Place
from charact.analysis.findings._watched_case import WatchedCase, layer_of

_FORWARD = ("forward", "loss", "other")
"""Phases in which the program calls operators itself."""
_DECOMPOSITIONS = {
    "aten::_linalg_svd": "singular value decomposition", "aten::_linalg_eigh": "eigendecomposition",
    "aten::linalg_eig": "eigendecomposition", "aten::geqrf": "QR decomposition", "aten::linalg_inv_ex": "inverse",
    "aten::linalg_matrix_exp": "matrix exponential",
}
"""Operators that take many times as long as a product of the same matrices, and what they compute.

Solutions of linear equations and Cholesky decompositions are left out: they are what replaces these.
"""
_CALLS = {"singular value decomposition": r"svd|cond|matrix_norm|pinv|matrix_rank|spectral", "inverse": r"inv",
          "eigendecomposition": r"eig", "QR decomposition": r"qr", "matrix exponential": r"matrix_exp"}
"""Calls of PyTorch that compute them, as regular expressions."""


def decomposition(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for each kind of matrix decomposition that takes much of an iteration."""
    rows = case.operators
    rows = rows[rows["operator"].isin(_DECOMPOSITIONS)]
    for what, calls in rows.groupby(rows["operator"].map(_DECOMPOSITIONS)):
        spent_s = float(calls["time_s"].sum())
        saving = case.saving(0.5 * spent_s, spent_s, "modelled")
        if saving is None:
            continue
        longest = calls.sort_values("time_s", ascending=False).iloc[0]
        sizes = " × ".join(map(str, (_shapes(longest["input_shapes"]) or [[]])[0][-2:]))
        number = float(calls["num_calls"].sum())
        power = ("; for the largest singular value alone, use a few steps of power iteration, as "
                 "torch.nn.utils.parametrizations.spectral_norm does" if what.startswith("singular") else "")
        yield Finding(
            f"the {what} of a matrix{f' of {sizes}' if sizes else ''} is computed in each iteration",
            f"compute it in every n-th iteration and keep the result, or of smaller matrices{power}", saving,
            (f"{longest['operator']} takes {case.takes(spent_s)}, in {number:g} call{'s' if number != 1 else ''}",),
            "medium", place=_place(case, str(longest["phase"]), _CALLS[str(what)]), phase=str(longest["phase"]),
            layer=layer_of(longest), operator=str(longest["operator"]))


_FEWEST_WORDS = 64
"""Smallest number of columns of a one-hot matrix that is reported."""


def one_hot_product(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if one-hot rows are multiplied by a matrix, which only selects rows of it."""
    rows = case.operators
    rows = rows[rows["input_shapes"].notna()]
    forward = rows[rows["phase"].isin(_FORWARD)]
    scatters = forward[forward["operator"].isin(("aten::scatter", "aten::scatter_"))]
    for shapes in scatters["input_shapes"].map(_shapes):
        if len(shapes) < 2 or not _is_one_hot(*shapes[:2]):
            continue
        whole, matrix = shapes[0], [math.prod(shapes[0][:-1]), shapes[0][-1]]
        on_matrix = rows[_have_input(rows, whole, matrix, matrix[::-1])]
        products = on_matrix[(on_matrix["operator_type"] == "GEMM") & on_matrix["phase"].isin(_FORWARD)]
        if products.empty:
            continue  # such as the targets of a loss
        spent_s = float(on_matrix["time_s"].sum())
        saving = case.saving(0.6 * spent_s, 1.25 * spent_s, "modelled")
        if saving is None:
            continue
        first = products.sort_values("time_s", ascending=False).iloc[0]
        layer = layer_of(first)
        factor = f"the weights of {layer}" if layer else "a matrix"
        yield Finding(
            f"one-hot rows of {whole[-1]:,} columns are multiplied by {factor}",
            "a product with one-hot rows selects rows of the matrix: index it by the numbers, as nn.Embedding does",
            saving, (f"operators on the one-hot matrix of {matrix[0]:,} × {matrix[1]:,} take {case.takes(spent_s)}",),
            "high", place=_place(case, str(first["phase"]), "one_hot|scatter"), phase=str(first["phase"]), layer=layer,
            operator=str(first["operator"]))
        return


def _is_one_hot(whole: list[int], indices: list[int]) -> bool:
    """Return whether a scatter writes one element into each row of a tensor, as one-hot vectors have."""
    return len(whole) > 1 and indices == [*whole[:-1], 1] and whole[-1] >= _FEWEST_WORDS


_LEAST_GROWTH, _FEWEST_ELEMENTS = 8, 1_000_000
"""Minimum number of elements of a result for each element of the inputs, and in all."""
_PASS_FRAC = 0.02
"""Smallest share of the expansion's time that an operator takes which goes through the expanded tensor."""
_PAIRWISE = frozenset({"sub", "rsub", "mul", "pow", "square", "abs", "neg", "add", "sqrt", "clamp_min"})
_SUMS = frozenset({"sum", "mean", "norm", "linalg_vector_norm"})
"""Operators on the expanded tensor, and its reductions, that torch.cdist or a matrix product replaces."""


def expanded_pairs(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if all pairs of rows are expanded by broadcasting, and the expanded tensor is then reduced."""
    rows = case.operators
    rows = rows[rows["input_shapes"].notna()]
    forward = rows[rows["phase"].isin(_FORWARD) & (rows["operator_type"] != "view")]
    for _, row in forward[forward["operator_type"] == "elementwise"].sort_values("time_s", ascending=False).iterrows():
        shapes = _shapes(row["input_shapes"])
        pairs = _expanded(*shapes[:2]) if len(shapes) > 1 else None
        if pairs is None:
            continue
        on_pairs = _have_input(rows, pairs)
        later = forward[on_pairs.reindex(forward.index) & (forward["time_s"] > _PASS_FRAC * row["time_s"])]
        names = set(later["operator"].str.removeprefix("aten::").str.rstrip("_"))
        if not names & _SUMS or not names <= _PAIRWISE | _SUMS:
            continue
        spent_s = float(rows.loc[on_pairs, "time_s"].sum()) + float(row["time_s"])
        saving = case.saving(0.5 * spent_s, 1.15 * spent_s, "modelled")
        if saving is None:
            continue
        yield Finding(
            f"pairs of rows are expanded to a tensor of {' × '.join(f'{size:,}' for size in pairs)} elements, which is "
            "then reduced", "compute the sum over pairs without the expanded tensor: torch.cdist for distances, a "
            "matrix product or torch.einsum for sums of products", saving,
            (f"operators on the expanded tensor take {case.takes(spent_s)}",), "high",
            place=_place(case, str(row["phase"]), r"None|unsqueeze|expand|\.view\(|reshape"), phase=str(row["phase"]),
            layer=layer_of(row), operator=str(row["operator"]))
        return


def _expanded(first: list[int], second: list[int]) -> list[int] | None:
    """Return the shape to which two shapes are broadcast if it is much larger than both; None if it is not."""
    if len(first) != len(second) or any(a != b and 1 not in (a, b) for a, b in zip(first, second, strict=True)):
        return None
    result = [max(sizes) for sizes in zip(first, second, strict=True)]
    num_elements, num_inputs = math.prod(result), math.prod(first) + math.prod(second)
    shares_rows = any(a == b > 1 for a, b in zip(first, second, strict=True))
    is_large = num_elements >= max(_FEWEST_ELEMENTS, _LEAST_GROWTH * num_inputs)
    return result if is_large and shares_rows else None


def _have_input(rows: pd.DataFrame, *shapes: list[int]) -> "pd.Series[bool]":
    """Return whether each operator has an input of one of the shapes."""
    return rows["input_shapes"].map(lambda text: any(each in shapes for each in _shapes(text))).astype(bool)


def _shapes(text: Any) -> list[list[int]]:
    """Return the shapes of an operator's inputs from their text, without those of lists; none if they are not known."""
    return [each for each in json.loads(text) if isinstance(each, list)] if isinstance(text, str) else []


def _place(case: WatchedCase, phase: str, pattern: str) -> Place | None:
    """Return the most sampled line of a phase that matches a pattern, by its text or by what it calls."""
    lines = case.all_lines(phase)
    return next((line.place for line in lines if re.search(pattern, f"{line.place.text} {line.library}")), None)
