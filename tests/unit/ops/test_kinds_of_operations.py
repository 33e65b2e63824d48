"""What every kind of operation promises: texts that parse back, results as in float64, one line for bad input."""

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from charact.core.errors import UserError
from charact.measure.microbench.operation_timing import result_error, tensor_bytes
from charact.ops import DIRECTIONS, all_kinds, parse_problem
from charact.ops.kinds.sparse_gemm import LAYOUTS

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
KINDS = all_kinds()
TEXTS = (
    "rnn:relu:16x3x7", "rnn:tanh:16x3x7", "rnn:lstm:16x3x7", "rnn:gru:16x3x7x5",
    "attention:2x3x16x16x8", "attention:2x3x16x20x8:causal",
    "normalization:batch_norm:4x8x6x5", "normalization:layer_norm:40x32", "softmax:20x300",
    "embedding:50x16x400", "embedding:50x16x400:uniform",
    "optimizer:sgd:1000", "optimizer:sgd:1000x7:foreach", "optimizer:adam:1000x7:single", "optimizer:adamw:1000:fused",
    "copy:1000", "gemm:1x1x1", "gemm:96x80x70", "gemm:96x80x70:nt", "gemm:96x80x70:tn", "gemm:96x80x70:tt",
    "convolution:3x4x9x8:6x3x3", "convolution:2x3x11x16:8x5x2:p2x1:s2x3", "convolution:1x1x5x5:1x1x1:s2",
    *(f"sparse_gemm:96x40x64:s0.9:{layout}" for layout in LAYOUTS),
)
RUN = [(text, direction, precision) for text in TEXTS for precision in ("fp32", "bf16", "int8")
       for problem in [parse_problem(text)] for kind in [KINDS[problem.operation]]
       if kind.refusal(problem, precision, CPU) is None for direction in kind.directions]


@pytest.mark.parametrize(("text", "direction", "precision"), RUN)
def test_results_are_those_of_float64_and_wrong_ones_are_found(text: str, direction: str, precision: str) -> None:
    problem = parse_problem(text)
    kind = KINDS[problem.operation]
    prepared = kind.prepare(problem, direction, precision, CPU)
    inputs = prepared.inputs()
    assert direction in DIRECTIONS
    assert result_error(prepared, inputs) <= prepared.tolerance < 0.5
    expected = prepared.reference(*prepared.inputs())
    other = prepared.compared(prepared.call(*prepared.inputs())).double()
    assert float((other - expected).abs().max() / expected.abs().max()) > prepared.tolerance
    if problem.operation in ("gemm", "convolution", "sparse_gemm"):
        moved = sum(map(tensor_bytes, inputs)) + prepared.call(*inputs).nbytes
        assert kind.num_bytes(problem, direction, inputs[1].itemsize) == moved


@pytest.mark.parametrize(("text", "direction", "num_terms"), [
    ("gemm:3x4x5", "forward", 5), ("sparse_gemm:9x8x7:s0.5", "forward", 7), ("softmax:3x5", "forward", 5),
    ("convolution:2x3x9x8:6x4x5", "forward", 3 * 4 * 5), ("convolution:2x3x9x8:6x4x5", "backward_input", 6 * 4 * 5),
    ("convolution:2x3x9x8:6x4x5", "backward_weight", 2 * 6 * 4), ("optimizer:adam:9", "forward", 10),
    ("normalization:batch_norm:2x3x4x5", "forward", 2 * 4 * 5),
])
def test_the_tolerance_is_that_of_the_terms_of_a_sum(text: str, direction: str, num_terms: int) -> None:
    problem = parse_problem(text)
    prepared = KINDS[problem.operation].prepare(problem, direction, "fp32", CPU)
    assert prepared.tolerance == pytest.approx(4 * 2.0**-24 * (1 + num_terms**0.5), rel=1e-12)


@pytest.mark.parametrize(("text", "direction"), [
    (text, direction) for text, direction, precision in RUN if direction != "forward" and precision == "fp32"])
def test_a_backward_pass_can_be_run_again_and_again(text: str, direction: str) -> None:
    problem = parse_problem(text)
    prepared = KINDS[problem.operation].prepare(problem, direction, "fp32", CPU)
    inputs = prepared.inputs()
    first, second = (prepared.compared(prepared.call(*inputs)) for _ in range(2))
    torch.testing.assert_close(first, second)


SIZE = st.integers(1, 1000).map(str)


def sizes(*counts: int) -> st.SearchStrategy[str]:
    return st.sampled_from(counts).flatmap(lambda count: st.lists(SIZE, min_size=count, max_size=count)).map("x".join)


def texts(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map("".join)


WRITTEN = st.one_of(
    texts(st.sampled_from(["rnn:relu:", "rnn:tanh:", "rnn:lstm:", "rnn:gru:"]), sizes(3, 4)),
    texts(st.just("attention:"), sizes(5), st.sampled_from(["", ":causal"])),
    texts(st.just("normalization:batch_norm:"), sizes(4)), texts(st.just("normalization:layer_norm:"), sizes(2)),
    texts(st.just("softmax:"), sizes(2)),
    texts(st.just("embedding:"), sizes(3), st.sampled_from(["", ":zipf", ":uniform"])),
    texts(st.sampled_from(["optimizer:sgd:", "optimizer:adam:", "optimizer:adamw:"]), SIZE,
          st.sampled_from(["", "x1"]), st.sampled_from(["", ":single", ":foreach", ":fused"])),
    texts(st.just("copy:"), SIZE, st.sampled_from(["", ":host_to_device", ":device_to_host"])),
    texts(st.just("all_reduce:"), SIZE, st.sampled_from(["", "x2", "x64", "x1024"])),
    texts(st.just("gemm:"), sizes(3), st.sampled_from(["", ":tn", ":nt", ":tt"])),
    # A hundred or more, so that of all numbers a hundredth are some.
    st.builds("sparse_gemm:{}x{}x{}:s{:.6f}{}".format, *[st.integers(100, 10**4)] * 3, st.floats(0, 0.9),
              st.sampled_from(["", *(f":{layout}" for layout in LAYOUTS)])),
    st.builds("convolution:{}x{}x{}x{}:{}x{}x{}:p{}x{}:s{}x{}".format, SIZE, SIZE, *[st.integers(9, 999)] * 2, SIZE,
              *[st.integers(1, 9)] * 2, *[st.integers(0, 9)] * 2, *[st.integers(1, 9)] * 2),
)


@example("sparse_gemm:100x1x100:s0.000001")
@given(WRITTEN)
def test_a_problems_text_parses_back(text: str) -> None:
    problem = parse_problem(text)
    again = parse_problem(problem.text)
    assert (again.text, again.sizes) == (problem.text, problem.sizes)
    assert (problem.suite, problem.set) == (None, None)


@given(st.sampled_from(sorted(KINDS)), st.text(st.sampled_from("0123456789x:.-abcdelmnoprst "), max_size=30))
def test_any_text_is_a_problem_or_one_line(kind: str, sizes_text: str) -> None:
    try:
        found = parse_problem(f"{kind}:{sizes_text}").operation
    except UserError as error:
        found = str(error)
    assert found == kind or (found.startswith("--problem: ") and "\n" not in found and len(found) < 400)


DOES_NOT_FIT = (
    "rnn:lstm:512x16", "rnn:512x16x25", "rnn:elman:512x16x25", "rnn:lstm:0x16x25", "rnn:lstm:512x16x25x3x3",
    "rnn:lstm:",
    "attention:2x3x4x5", "attention:2x3x4x5x6:masked", "attention:2x3x4x5x6:",
    "normalization:5x5", "normalization:group_norm:5x5", "normalization:batch_norm:5x5",
    "normalization:layer_norm:-1x5",
    "softmax:5", "softmax:5x5x5", "softmax:5x1e3", "embedding:5x5", "embedding:5x5x5:normal", "embedding:5x5x5:",
    "optimizer:adam", "optimizer:lion:5", "optimizer:adam:5:quick", "optimizer:adam:5x6", "optimizer:adam:5x1x1",
    "optimizer:adam:99999x10001", "copy:", "copy:5x5", "copy:5:sideways", "copy:5:", "all_reduce:", "all_reduce:5x0",
    "all_reduce:5x2x2", "all_reduce:99999999999", "all_reduce:5x1", "all_reduce:5x1025",
    "convolution:8x3x9x9:64x3x3:p" + 5000 * "9", "convolution:8x3x9x9:64x3x3:p²",
    "gemm:", "gemm:3x4", "gemm:3x4x5x6", "gemm:3x4x5:", "gemm:3x4x5:nn:nn", "gemm:3x4x-5", "gemm:3x4x5.0", "gemm:3x4x٣",
    "convolution:1x1x4x4:1x3x3:s0", "convolution:1x1x4x4:1x3x3:s1x2x3", "convolution:1x1x4x4:1x3x3:p",
    "convolution:1x1x4x4:1x3x3:px", "convolution:1x1x4x4", "convolution:1x1x4x4:1x3x3:p9999999999",
    "sparse_gemm:9x9x9", "sparse_gemm:9x9x9:0.9", "sparse_gemm:9x9x9:s0.9:csx", "sparse_gemm:9x9x9:s-0.5",
)


@pytest.mark.parametrize(("text", "said"), [
    *((text, "") for text in DOES_NOT_FIT), ("gemm:3x", "'3x' does not fit gemm:MxNxK"),
    ("rnn:lstm:1000000000x1x1", "more than PyTorch can count the bytes of"),
    ("gemm:0x1x1", "the size 0 in '0x1x1' is not from 1"), ("gemm:1x1x1000000001", "is not from 1"),
    ("gemm:1000000000x1x1000000000", "has a tensor of 1e+18 numbers"),
    ("gemm", "'gemm' is not an operation: write"), ("", "is not an operation"), ("gem:3x4x5", "is not an operation"),
    ("convolution:1x1x4x4:1x5x1", "whose filter is larger than its image"),
    *((f"sparse_gemm:9x9x9:{share}", "leaves no number that is not") for share in ("s1", "s1.5", "d1.5", "s0.999")),
])
def test_bad_texts_are_one_line_with_the_way_to_write_them(text: str, said: str) -> None:
    with pytest.raises(UserError, match=r"^--problem: ") as caught:
        parse_problem(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "precision", "device", "said"), [
    ("copy:10:host_to_device", "fp32", CPU, "use --device cuda"),
    ("copy:10", "int8", CPU, "use --precision fp32"),
    ("all_reduce:10", "fp32", CPU, "use --ranks 2"),
    ("all_reduce:10x1000", "fp32", CUDA, "use --device cpu"),
    ("softmax:2x2", "tf32", CPU, "use --precision fp32"),
    ("softmax:2x2", "fp16", CPU, "--precision bf16"),
    ("optimizer:sgd:2", "int8", CPU, "use --precision fp32"),
    ("normalization:batch_norm:1x3x1x1", "fp32", CPU, "choose a larger batch"),
    ("attention:1x1x2x2x2", "int8", CPU, "use --precision bf16"),
    ("gemm:9x9x9", "fp16", CPU, "fp16 is not measured on a CPU"), ("gemm:9x9x9", "tf32", CPU, "tf32 is a mode"),
    ("gemm:16x8x8", "int8", CUDA, "M above 16"), ("gemm:17x9x8", "int8", CUDA, "M above 16"),
    ("convolution:1x1x4x4:1x3x3", "int8", CPU, "no plain int8 convolution"),
    ("sparse_gemm:9x9x9:s0.5", "int8", CPU, "no sparse products of int8"),
    ("sparse_gemm:9x9x9:s0.5:csc", "bf16", CPU, "on a CPU PyTorch multiplies csc matrices in float32 only"),
    ("sparse_gemm:9x9x9:s0.5:coo", "bf16", CUDA, "on a GPU PyTorch multiplies coo matrices in float32 only"),
    ("sparse_gemm:96x9x40:s0.5:bsr", "fp32", CPU, "bsr needs M and K that 16 divides, not 96 and 40"),
    ("rnn:lstm:8x2x3", "int8", CPU, "--operations gemm"),
])
def test_refusals_name_the_remedy(text: str, precision: str, device: torch.device, said: str) -> None:
    problem = parse_problem(text)
    reason = KINDS[problem.operation].refusal(problem, precision, device)
    assert reason is not None
    assert said in reason
    assert "\n" not in reason


@pytest.mark.parametrize(("way", "pinned"), [("", [False, False]), (":host_to_device", [False, True]),
                                             (":device_to_host", [True, False])])
def test_pinned_memory_is_the_host_s_end_of_a_transfer(monkeypatch: pytest.MonkeyPatch, way: str,
                                                       pinned: list[bool]) -> None:
    found, empty = list[bool](), torch.empty

    def recorded(*sizes: int, pin_memory: bool = False, **others: Any) -> torch.Tensor:
        found.append(pin_memory)
        return empty(*sizes, **others)

    kind = KINDS["copy"]
    prepared = kind.prepare(kind.parse(f"9{way}"), "forward", "fp32", CPU)
    monkeypatch.setattr(torch, "empty", recorded)
    target, source = prepared.inputs()
    assert (found, target.tolist()) == (pinned, [0.0] * 9)
    assert prepared.compared(prepared.call(target, source)).tolist() == source.double().tolist() == target.tolist()
