"""Kinds whose work is moving numbers: bytes by hand, what they compute, and what they refuse."""

import pytest
import torch

from charact.measure.microbench.operation_timing import result_error
from charact.ops import Prepared, all_kinds, parse_problem
from charact.ops.kinds import embedding, normalization, softmax
from charact.ops.kinds.all_reduce import with_ranks

CPU = torch.device("cpu")
KINDS = all_kinds()


def prepared(text: str, direction: str = "forward", precision: str = "fp32") -> Prepared:
    problem = parse_problem(text)
    return KINDS[problem.operation].prepare(problem, direction, precision, CPU)


@pytest.mark.parametrize(("text", "direction", "num_bytes"), [
    ("normalization:batch_norm:2x3x4x5", "forward", 4 * (2 * 120 + 2 * 3)),
    ("normalization:batch_norm:2x3x4x5", "backward_input", 4 * (3 * 120 + 3)),
    ("normalization:batch_norm:2x3x4x5", "backward_weight", 4 * (2 * 120 + 2 * 3)),
    ("normalization:layer_norm:6x5", "forward", 4 * (2 * 30 + 2 * 5)),
    ("normalization:layer_norm:6x5", "backward_input", 4 * (3 * 30 + 5)),
    ("softmax:6x5", "forward", 4 * 2 * 30),
    ("softmax:6x5", "backward_input", 4 * 3 * 30),
    ("embedding:100x8x10", "forward", 8 * 10 + 4 * 8 * (10 + 10)),
    ("embedding:4x8x10", "forward", 8 * 10 + 4 * 8 * (10 + 4)),  # no more rows are read than there are
    ("embedding:100x8x10", "backward_weight", 8 * 10 + 4 * 8 * (10 + 100)),
    ("optimizer:sgd:1000", "forward", 4 * 5 * 1000),  # weight, momentum: read and written; gradient: read
    ("optimizer:adam:1000x4:fused", "forward", 4 * 7 * 1000),
    ("copy:1000", "forward", 4 * 2 * 1000),
    ("copy:1000:host_to_device", "forward", 4 * 1000),
    ("all_reduce:1000x2", "forward", 4 * 1000),
    ("all_reduce:1000x4", "forward", 4 * 1500),  # 2 (N - 1) / N
])
def test_bytes_by_hand(text: str, direction: str, num_bytes: float) -> None:
    problem = parse_problem(text)
    kind = KINDS[problem.operation]
    assert kind.num_bytes(problem, direction, 4) == num_bytes
    assert kind.flop(problem, direction) is None


@pytest.mark.parametrize(("module", "text", "direction", "elements", "num_compared"), [
    (normalization, "normalization:batch_norm:2x6x4x5", "forward", 80, 80),  # two channels of 40
    (normalization, "normalization:batch_norm:2x6x4x5", "backward_input", 80, 80),
    (normalization, "normalization:batch_norm:2x6x4x5", "backward_weight", 80, 2 + 2),
    (normalization, "normalization:layer_norm:7x5", "forward", 15, 15),
    (normalization, "normalization:layer_norm:7x5", "backward_input", 15, 15),
    (normalization, "normalization:layer_norm:7x5", "backward_weight", 15, 5 + 5),  # of all rows, three at a time
    (softmax, "softmax:7x5", "forward", 15, 15),
    (softmax, "softmax:7x5", "backward_input", 15, 15),
    (embedding, "embedding:20x6x30", "forward", 60, 60),
    (embedding, "embedding:20x6x30", "backward_weight", 60, 60),
])
def test_a_part_is_compared_where_all_would_take_long(
        monkeypatch: pytest.MonkeyPatch, module: object, text: str, direction: str, elements: int, num_compared: int,
) -> None:
    monkeypatch.setattr(module, "_CHECKED_ELEMENTS", elements)
    made = prepared(text, direction)
    inputs = made.inputs()
    assert made.reference(*inputs).numel() == num_compared
    assert result_error(made, inputs) <= made.tolerance


def test_words_follow_zipfs_law_or_are_uniform() -> None:
    def num_commonest(text: str) -> int:
        return int((prepared(text).inputs()[0] == 0).sum())

    # The sum of 1 / k over 1000 words is 7.485: a standard deviation of the first word's count is 107 of 13 360.
    assert num_commonest("embedding:1000x1x100000") == pytest.approx(100_000 / 7.485, abs=600)
    assert num_commonest("embedding:1000x1x100000:uniform") == pytest.approx(100, abs=60)


@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw"])
def test_every_way_takes_the_same_step(rule: str) -> None:
    results = []
    for way in ("single", "foreach", "fused"):
        made = prepared(f"optimizer:{rule}:1000x3:{way}")
        inputs = made.inputs()
        before = inputs[0].clone()
        assert made.call(*inputs) is inputs[0]
        assert float((inputs[0] - before).abs().mean()) > 0.01
        assert [len(tensor) for tensor in inputs[:3]] == [334, 333, 333]
        results.append(inputs[0])
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


def test_adam_by_hand() -> None:
    made = prepared("optimizer:adam:1")
    weight, gradient, mean, square, step = made.inputs()
    for tensor, value in ((weight, 1.0), (gradient, 2.0), (mean, 0.0), (square, 0.0), (step, 0.0)):
        tensor.fill_(value)
    made.call(weight, gradient, mean, square, step)
    assert float(weight) == pytest.approx(0.9)  # the first step from nothing is the learning rate, by the sign


def test_ranks_are_taken_from_the_text_or_else_from_the_option() -> None:
    assert with_ranks(parse_problem("all_reduce:10"), 4).text == "all_reduce:10x4"
    assert with_ranks(parse_problem("all_reduce:10x3"), 4).text == "all_reduce:10x3"
    assert with_ranks(parse_problem("all_reduce:10"), 1).text == "all_reduce:10"
