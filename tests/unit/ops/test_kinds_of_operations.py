"""What every kind of operation promises: texts that parse back, results as in float64, one line for bad input."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from charact.core.errors import UserError
from charact.measure.microbench.operation_timing import result_error
from charact.ops import DIRECTIONS, all_kinds, parse_problem

CPU = torch.device("cpu")
KINDS = all_kinds()
TEXTS = (
    "rnn:relu:16x3x7", "rnn:tanh:16x3x7", "rnn:lstm:16x3x7", "rnn:gru:16x3x7x5",
    "attention:2x3x16x16x8", "attention:2x3x16x20x8:causal",
    "normalization:batch_norm:4x8x6x5", "normalization:layer_norm:40x32", "softmax:20x300",
    "embedding:50x16x400", "embedding:50x16x400:uniform",
    "optimizer:sgd:1000", "optimizer:sgd:1000x7:foreach", "optimizer:adam:1000x7:single", "optimizer:adamw:1000:fused",
    "copy:1000",
)
RUN = [(text, direction, precision) for text in TEXTS for precision in ("fp32", "bf16")
       for direction in KINDS[text.partition(":")[0]].directions]


@pytest.mark.parametrize(("text", "direction", "precision"), RUN)
def test_results_are_those_of_float64(text: str, direction: str, precision: str) -> None:
    problem = parse_problem(text)
    kind = KINDS[problem.operation]
    assert direction in DIRECTIONS
    assert kind.refusal(problem, precision, CPU) is None
    prepared = kind.prepare(problem, direction, precision, CPU)
    assert result_error(prepared, prepared.inputs()) <= prepared.tolerance < 0.5


@pytest.mark.parametrize(("text", "direction", "precision"), RUN)
def test_results_of_other_inputs_are_wrong(text: str, direction: str, precision: str) -> None:
    problem = parse_problem(text)
    prepared = KINDS[problem.operation].prepare(problem, direction, precision, CPU)
    expected = prepared.reference(*prepared.inputs())
    found = prepared.compared(prepared.call(*prepared.inputs())).double()
    assert float((found - expected).abs().max() / expected.abs().max()) > prepared.tolerance


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
)


@given(WRITTEN)
def test_a_problems_text_parses_back(text: str) -> None:
    problem = parse_problem(text)
    again = parse_problem(problem.text)
    assert again == problem
    assert again.sizes == problem.sizes
    assert (problem.suite, problem.set) == (None, None)


@given(st.sampled_from(sorted(KINDS)), st.text(st.sampled_from("0123456789x:.-abcdelmnoprst "), max_size=30))
def test_any_text_is_a_problem_or_one_line(kind: str, sizes_text: str) -> None:
    try:
        found = parse_problem(f"{kind}:{sizes_text}").operation
    except UserError as error:
        found = str(error)
    assert found == kind or (found.startswith("--problem: ") and "\n" not in found and len(found) < 400)


@pytest.mark.parametrize("text", [
    "rnn:lstm:512x16", "rnn:512x16x25", "rnn:elman:512x16x25", "rnn:lstm:0x16x25", "rnn:lstm:512x16x25x3x3",
    "rnn:lstm:",
    "rnn:lstm:1000000000x1x1",  # of 4 × 10⁹ × 2 × 10⁹ weights PyTorch cannot even count the bytes
    "attention:2x3x4x5", "attention:2x3x4x5x6:masked", "attention:2x3x4x5x6:",
    "normalization:5x5", "normalization:group_norm:5x5", "normalization:batch_norm:5x5",
    "normalization:layer_norm:-1x5",
    "softmax:5", "softmax:5x5x5", "softmax:5x1e3", "embedding:5x5", "embedding:5x5x5:normal", "embedding:5x5x5:",
    "optimizer:adam", "optimizer:lion:5", "optimizer:adam:5:quick", "optimizer:adam:5x6", "optimizer:adam:5x1x1",
    "optimizer:adam:99999x10001", "copy:", "copy:5x5", "copy:5:sideways", "copy:5:", "all_reduce:", "all_reduce:5x0",
    "all_reduce:5x2x2", "all_reduce:99999999999", "all_reduce:5x1", "all_reduce:5x1025",
    "convolution:8x3x9x9:64x3x3:p" + 5000 * "9", "convolution:8x3x9x9:64x3x3:p²",
])
def test_bad_sizes_are_one_line_with_the_way_to_write_them(text: str) -> None:
    with pytest.raises(UserError, match=r"^--problem: ") as caught:
        parse_problem(text)
    assert "\n" not in str(caught.value)
