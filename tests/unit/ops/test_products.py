"""Products and convolutions: their texts, work and bytes, and their results in every direction and precision."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from charact.core.errors import UserError
from charact.measure.microbench.operation_timing import result_error, tensor_bytes
from charact.ops import all_kinds, parse_problem
from charact.ops.kinds.sparse_gemm import LAYOUTS, with_layouts
from charact.ops.numerics import spread_indices

CPU = torch.device("cpu")
KINDS = all_kinds()
TEXTS = (
    "gemm:1x1x1", "gemm:96x80x70", "gemm:96x80x70:nt", "gemm:96x80x70:tn", "gemm:96x80x70:tt",
    "convolution:3x4x9x8:6x3x3", "convolution:2x3x11x16:8x5x2:p2x1:s2x3", "convolution:1x1x5x5:1x1x1:s2",
    *(f"sparse_gemm:96x40x64:s0.9:{layout}" for layout in LAYOUTS),
)
RUN = [(text, direction, precision) for text in TEXTS for precision in ("fp32", "bf16", "int8")
       for problem in [parse_problem(text)] for kind in [KINDS[problem.operation]]
       if kind.refusal(problem, precision, CPU) is None for direction in kind.directions]


@pytest.mark.parametrize(("text", "direction", "precision"), RUN)
def test_results_and_bytes_are_right(text: str, direction: str, precision: str) -> None:
    problem = parse_problem(text)
    kind = KINDS[problem.operation]
    prepared = kind.prepare(problem, direction, precision, CPU)
    inputs = prepared.inputs()
    assert result_error(prepared, inputs) <= prepared.tolerance
    moved = sum(map(tensor_bytes, inputs)) + prepared.call(*inputs).nbytes
    assert kind.num_bytes(problem, direction, inputs[1].itemsize) == moved


@pytest.mark.parametrize(("text", "direction", "precision"), RUN)
def test_a_wrong_result_is_found(text: str, direction: str, precision: str) -> None:
    problem = parse_problem(text)
    prepared = KINDS[problem.operation].prepare(problem, direction, precision, CPU)
    wrong = replace(prepared, call=lambda *inputs: prepared.call(*inputs) * 2)
    assert result_error(wrong, prepared.inputs()) > prepared.tolerance


@pytest.mark.parametrize("size", [1, 2, 5, 1000, 10**9 - 1])
def test_what_is_checked_reaches_from_the_first_to_the_last(size: int) -> None:
    found = spread_indices(size, 5).tolist()
    assert (found[0], found[-1], len(found)) == (0, size - 1, min(size, 5))
    assert found == sorted(set(found))


def test_int8_is_run_by_products_alone() -> None:
    refusal = KINDS["gemm"].refusal(parse_problem("gemm:96x80x70"), "int8", CPU)
    assert refusal is None or "VNNI" in refusal
    assert {text.partition(":")[0] for text, _, precision in RUN if precision == "int8"} == (
        {"gemm"} if refusal is None else set())


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


SIZE = st.integers(1, 10**4)
FEW = st.integers(100, 10**4)  # so that of all numbers a hundredth are some


@example("sparse_gemm:100x1x100:s0.000001")
@given(st.one_of(
    st.builds("gemm:{}x{}x{}{}".format, SIZE, SIZE, SIZE, st.sampled_from(["", ":tn", ":nt", ":tt"])),
    st.builds("sparse_gemm:{}x{}x{}:s{:.6f}{}".format, FEW, SIZE, FEW, st.floats(0, 0.9),
              st.sampled_from(["", *(f":{layout}" for layout in LAYOUTS)])),
    st.builds("convolution:{}x{}x{}x{}:{}x{}x{}:p{}x{}:s{}x{}".format, SIZE, SIZE, *[st.integers(9, 999)] * 2, SIZE,
              *[st.integers(1, 9)] * 2, *[st.integers(0, 9)] * 2, *[st.integers(1, 9)] * 2),
))
def test_a_text_parses_back(text: str) -> None:
    problem = parse_problem(text)
    again = parse_problem(problem.text)
    assert (again.text, again.sizes) == (problem.text, problem.sizes)


@pytest.mark.parametrize(("text", "said"), [
    ("gemm:3x", "'3x' does not fit gemm:MxNxK"), ("gemm:", "does not fit"), ("gemm:3x4", "does not fit"),
    ("gemm:3x4x5x6", "does not fit"), ("gemm:3x4x5:", "does not fit"), ("gemm:3x4x5:nn:nn", "does not fit"),
    ("gemm:3x4x-5", "does not fit"), ("gemm:3x4x5.0", "does not fit"), ("gemm:3x4x٣", "does not fit"),
    ("gemm:0x1x1", "the size 0 in '0x1x1' is not from 1"), ("gemm:1x1x1000000001", "is not from 1"),
    ("gemm:1000000000x1x1000000000", "has a tensor of 1e+18 numbers"),
    ("gemm", "'gemm' is not an operation: write"), ("", "is not an operation"), ("gem:3x4x5", "is not an operation"),
    ("convolution:1x1x4x4:1x5x1", "whose filter is larger than its image"),
    ("convolution:1x1x4x4:1x3x3:s0", "does not fit"), ("convolution:1x1x4x4:1x3x3:s1x2x3", "does not fit"),
    ("convolution:1x1x4x4:1x3x3:p", "does not fit"), ("convolution:1x1x4x4:1x3x3:px", "does not fit"),
    ("convolution:1x1x4x4", "does not fit"), ("convolution:1x1x4x4:1x3x3:p9999999999", "does not fit"),
    ("sparse_gemm:9x9x9", "does not fit"), ("sparse_gemm:9x9x9:0.9", "does not fit"),
    ("sparse_gemm:9x9x9:s0.9:csx", "does not fit"), ("sparse_gemm:9x9x9:s1", "leaves no number that is not zero"),
    ("sparse_gemm:9x9x9:s1.5", "leaves no number"), ("sparse_gemm:9x9x9:d1.5", "leaves no number"),
    ("sparse_gemm:9x9x9:s0.999", "leaves no number"), ("sparse_gemm:9x9x9:s-0.5", "does not fit"),
])
def test_bad_texts_are_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_problem(text)
    assert said in str(caught.value)
    assert str(caught.value).startswith("--problem: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "precision", "said"), [
    ("gemm:9x9x9", "fp16", "fp16 is not measured on a CPU"), ("gemm:9x9x9", "tf32", "tf32 is a mode"),
    ("convolution:1x1x4x4:1x3x3", "int8", "no plain int8 convolution"),
    ("sparse_gemm:9x9x9:s0.5", "int8", "no sparse products of int8"),
    ("sparse_gemm:9x9x9:s0.5:csc", "bf16", "on a CPU PyTorch multiplies csc matrices in float32 only"),
    ("sparse_gemm:96x9x40:s0.5:bsr", "fp32", "bsr needs M and K that 16 divides, not 96 and 40"),
])
def test_what_cannot_run_is_told(text: str, precision: str, said: str) -> None:
    problem = parse_problem(text)
    refusal = KINDS[problem.operation].refusal(problem, precision, CPU)
    assert refusal is not None
    assert said in refusal


@pytest.mark.parametrize("text", ["sparse_gemm:64x8x64:s0.5:csr", "sparse_gemm:64x8x64:s0.5:csc",
                                  "sparse_gemm:64x8x64:s0.5:bsr"])
def test_what_is_refused_in_bf16_pytorch_does_not_run(text: str) -> None:
    prepared = KINDS["sparse_gemm"].prepare(parse_problem(text), "forward", "bf16", CPU)
    with pytest.raises(NotImplementedError):
        prepared.call(*prepared.inputs())
