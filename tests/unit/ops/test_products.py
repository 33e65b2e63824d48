"""Products and convolutions: their texts, work and bytes, and their results in every direction and precision."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from charact.ops import all_kinds, parse_problem
from charact.ops.kinds.sparse_gemm import LAYOUTS, with_layouts
from charact.ops.numerics import spread_indices

CPU = torch.device("cpu")
KINDS = all_kinds()


@pytest.mark.parametrize("size", [1, 2, 5, 1000, 10**9 - 1])
def test_what_is_checked_reaches_from_the_first_to_the_last(size: int) -> None:
    found = spread_indices(size, 5).tolist()
    assert (found[0], found[-1], len(found)) == (0, size - 1, min(size, 5))
    assert found == sorted(set(found))


@pytest.mark.parametrize("text", ["convolution:3x4x9x8:6x3x3", "convolution:2x3x11x16:8x5x2:p2x1:s2x3"])
@pytest.mark.parametrize("direction", ["forward", "backward_input", "backward_weight"])
def test_convolutions_have_the_work_that_pytorch_counts(text: str, direction: str) -> None:
    problem = parse_problem(text)
    prepared = KINDS["convolution"].prepare(problem, direction, "fp32", CPU)
    inputs = prepared.inputs()
    with FlopCounterMode(display=False) as counter:
        prepared.call(*inputs)
    assert KINDS["convolution"].flop(problem, direction) == counter.get_total_flops() > 0


def test_the_work_of_a_product_is_two_flop_a_term() -> None:
    problem = parse_problem("gemm:3x5x7")
    assert KINDS["gemm"].flop(problem, "forward") == 210
    assert KINDS["gemm"].num_bytes(problem, "forward", 4) == 4 * (21 + 35 + 15)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sparse_matrix_has_the_zeros_that_were_asked_for(layout: str) -> None:
    problem = parse_problem(f"sparse_gemm:96x40x64:s0.9:{layout}")
    kind = KINDS["sparse_gemm"]
    matrix, _ = kind.prepare(problem, "forward", "fp32", CPU).inputs()
    num_nonzeros = int(matrix.to_dense().count_nonzero())
    # Of 96 × 64 numbers a tenth, of 6 × 4 blocks of 256 two.
    assert num_nonzeros == (512 if layout == "bsr" else 614)
    assert kind.sparsity_frac(problem) == 1 - num_nonzeros / (96 * 64)
    assert kind.flop(problem, "forward") == 2 * 40 * (96 * 64 if layout == "dense" else num_nonzeros)
    assert (matrix.layout == torch.strided) == (layout == "dense")


def test_zeros_lie_elsewhere_in_each_matrix_and_everywhere() -> None:
    prepared = KINDS["sparse_gemm"].prepare(parse_problem("sparse_gemm:50x1x40:s0.5:dense"), "forward", "fp32", CPU)
    masks = torch.stack([prepared.inputs()[0] != 0 for _ in range(200)]).double().mean(0)
    # A mean of 200 throws is within five standard deviations of a half, in each of 2,000 places.
    assert float((masks - 0.5).abs().max()) < 5 * 0.5 / 200**0.5


def test_density_and_sparsity_are_kept_apart() -> None:
    sparse, dense = parse_problem("sparse_gemm:9x9x9:s0.9"), parse_problem("sparse_gemm:9x9x9:d0.9")
    assert (sparse.sizes["sparsity"], dense.sizes["sparsity"]) == (0.9, 0.1)
    assert dense.text == "sparse_gemm:9x9x9:s0.1"
    assert (sparse.convention, dense.convention) == (None, "given as density, the share of non-zeros")
    assert parse_problem("sparse_gemm:9x9x9:d0.1").text == sparse.text


def test_a_problem_is_run_in_each_layout_unless_it_names_one() -> None:
    problem = replace(parse_problem("sparse_gemm:9x9x9:s0.9"), suite="vo")
    found = with_layouts(problem, ["coo", "dense"])
    assert [(one.text, one.suite, one.sizes["layout"]) for one in found] == [
        ("sparse_gemm:9x9x9:s0.9:coo", "vo", "coo"), ("sparse_gemm:9x9x9:s0.9:dense", "vo", "dense")]
    assert [one.text for one in with_layouts(found[0], ["csr"])] == ["sparse_gemm:9x9x9:s0.9:coo"]


@pytest.mark.parametrize(("text", "canonical"), [
    ("gemm:3x4x5:nn", "gemm:3x4x5"), ("gemm:03x4x5:tn", "gemm:3x4x5:tn"),
    ("convolution:1x2x9x9:4x3x3:p0:s1x1", "convolution:1x2x9x9:4x3x3"),
    ("convolution:1x2x9x9:4x3x3:p1x1:s2x2", "convolution:1x2x9x9:4x3x3:p1:s2"),
    ("convolution:1x2x9x9:4x3x3:p0x1:s2x1", "convolution:1x2x9x9:4x3x3:p0x1:s2x1"),
    ("sparse_gemm:9x9x9:s.90", "sparse_gemm:9x9x9:s0.9"), ("sparse_gemm:9x9x9:s0.5:csr", "sparse_gemm:9x9x9:s0.5:csr"),
])
def test_what_is_written_in_several_ways_has_one_text(text: str, canonical: str) -> None:
    assert parse_problem(text).text == canonical


@pytest.mark.parametrize("text", ["sparse_gemm:64x8x64:s0.5:csr", "sparse_gemm:64x8x64:s0.5:csc",
                                  "sparse_gemm:64x8x64:s0.5:bsr"])
def test_what_is_refused_in_bf16_pytorch_does_not_run(text: str) -> None:
    prepared = KINDS["sparse_gemm"].prepare(parse_problem(text), "forward", "bf16", CPU)
    with pytest.raises(NotImplementedError):
        prepared.call(*prepared.inputs())
