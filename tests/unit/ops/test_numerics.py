"""Sizes at their limits, tolerances against NumPy's types, and which parts of results are compared."""

import numpy as np
import pytest
import torch

from charact.core.errors import UserError
from charact.ops.numerics import ROUNDING, checked_product, gradients, spread_indices, sum_tolerance, with_graph
from charact.ops.parsing import check_elements, whole_numbers

CPU = torch.device("cpu")


@pytest.mark.parametrize(("text", "count", "numbers"), [
    ("1", 1, [1]), ("1000000000x2", 2, [10**9, 2]), ("1000000001", 1, None), ("0", 1, None), ("3x4", 1, None),
    ("3x", 2, None), ("-3", 1, None), ("007", 1, [7]), ("0" * 19 + "5", 1, [5]),
    ("0" * 20 + "5", 1, None), ("٣", 1, None)])
def test_whole_numbers(text: str, count: int, numbers: list[int] | None) -> None:
    if numbers is None:
        with pytest.raises(UserError, match="--problem"):
            whole_numbers(text, count, "k:N")
    else:
        assert whole_numbers(text, count, "k:N") == numbers


def test_the_limit_of_elements() -> None:
    check_elements("t", [2**28, 2**28], [])
    for shape in ([2**28, 2**28 + 1], [2**57]):
        with pytest.raises(UserError, match=r"has a tensor of .*e\+17|has a tensor of 7\.21e\+16"):
            check_elements("t", [1], shape)


@pytest.mark.parametrize(("precision", "kind"), [("fp32", np.float32), ("fp16", np.float16)])
def test_tolerances_are_four_roundings_and_grow_with_the_root(precision: str, kind: type[np.floating]) -> None:
    unit = float(np.finfo(kind).eps) / 2
    assert ROUNDING[precision] == unit
    assert sum_tolerance(precision, 100) == pytest.approx(4 * unit + 40 * 2.0**-24)
    assert sum_tolerance("fp32", 25, kept_in="bf16") == pytest.approx(2.0**-22 + 20 * 2.0**-8)
    assert sum_tolerance("int8", 9) == 0


@pytest.mark.parametrize(("size", "count", "expected"), [(5, 9, [0, 1, 2, 3, 4]), (9, 3, [0, 4, 8]), (1, 4, [0]),
                                                         (10, 2, [0, 9]), (4, 4, [0, 1, 2, 3])])
def test_spread_indices(size: int, count: int, expected: list[int]) -> None:
    assert spread_indices(size, count).tolist() == expected


def test_a_product_is_checked_in_64_rows_and_columns_with_both_ends() -> None:
    a, b = torch.randn(130, 5), torch.randn(5, 7)
    reference, compared = checked_product(130, 7, CPU)
    product = a.double() @ b.double()
    assert reference(a, b).shape == (64, 7)
    torch.testing.assert_close(reference(a, b), compared(product))
    torch.testing.assert_close(compared(product)[[0, -1]], product[[0, -1]])


def test_gradients_are_those_of_inputs_that_require_them() -> None:
    x, y = torch.tensor([2.0, 3.0], requires_grad=True), torch.tensor([5.0, 7.0])
    with torch.no_grad():
        parts = with_graph(torch.mul, [x, y], torch.Generator().manual_seed(0))
    for _ in range(2):
        (found,) = gradients(*parts)
        torch.testing.assert_close(found, parts[1] * y)
