"""Cutting: what a piece may hold, how much of it, and that every layer stands in one piece."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.captured_by_hand import ByHand, Value, branches, check_chained, run_whole

from charact.bricks.aten import runnable
from charact.bricks.suite.brick import brick_of
from charact.bricks.suite.captured_graph import CapturedModel
from charact.bricks.suite.layer_sequences import METHODS, Segment, cut, written_before


def groups(captured: CapturedModel, g: int, method: str) -> list[tuple[int, ...]]:
    return [piece.layers for piece in cut(captured, g, method)]


def types(captured: CapturedModel, g: int, method: str) -> list[str]:
    return ["+".join(captured.layers[index].operator.split(".")[1] for index in layers)
            for layers in groups(captured, g, method)]


def test_a_piece_of_one_layer_each() -> None:
    captured = branches()
    for method in ("chains", "paper"):
        assert groups(captured, 1, method) == [(number,) for number in range(8)]


def test_chains_end_at_branches_and_joins() -> None:
    assert types(branches(), 2, "chains") == ["conv2d+batch_norm", "relu_", "conv2d", "conv2d+tanh", "add+relu_"]
    assert types(branches(), 8, "chains") == ["conv2d+batch_norm+relu_", "conv2d", "conv2d+tanh", "add+relu_"]


def test_the_papers_windows_are_whole_or_one_layer() -> None:
    assert types(branches(), 2, "paper") == ["conv2d+batch_norm", "relu_", "conv2d", "conv2d+tanh", "add+relu_"]
    assert types(branches(), 3, "paper") == ["conv2d+batch_norm+relu_", "conv2d", "conv2d", "tanh", "add", "relu_"]


def test_heavy_layers_take_the_light_ones_behind_them() -> None:
    heavy = ["conv2d+batch_norm+relu_", "conv2d", "conv2d+tanh+add+relu_"]
    assert types(branches(), 1, "heavy") == heavy
    assert types(branches(), 2, "heavy") == ["+".join(heavy[:2]), heavy[2]]


def test_light_layers_before_the_first_heavy_one_stand_by_themselves() -> None:
    made = ByHand()
    x = made.add("relu.default", made.add("tanh.default", made.leaf("input", torch.randn(2, 2))))
    captured = made.model(made.add("mm.default", x, made.weight(2, 2)))
    assert types(captured, 1, "heavy") == types(captured, 4, "heavy") == ["tanh+relu", "mm"]


def test_a_result_of_the_model_ends_its_chain() -> None:
    made = ByHand()
    middle = made.add("relu.default", made.leaf("input", torch.randn(2, 2)))
    end = made.add("tanh.default", middle)
    assert groups(made.model(end), 4, "chains") == [(0, 1)]
    assert groups(made.model(middle, end), 4, "chains") == [(0,), (1,)]


def test_one_of_several_outputs_may_go_on_where_nobody_reads_the_others() -> None:
    made = ByHand()
    first, second = made.add("split.Tensor", made.leaf("input", torch.randn(4, 2)), 2)
    end = made.add("tanh.default", first)
    assert groups(made.model(end), 4, "chains") == [(0, 1)]
    assert groups(made.model(end, made.add("neg.default", second)), 4, "chains") == [(0,), (1,), (2,)]


def test_what_reads_nothing_begins_a_chain() -> None:
    made = ByHand()
    end = made.add("neg.default", made.add("ones.default", [3]))
    (piece,) = cut(made.model(end), 2, "chains")
    assert piece == Segment(layers=(0, 1), inputs=(), outputs=(1,))


def test_inputs_stand_in_the_order_of_their_use_and_once() -> None:
    made = ByHand()
    weight, x = made.weight(2, 2), made.leaf("input", torch.randn(2, 2))
    y = made.add("mm.default", x, x)
    end = made.add("mm.default", y, weight)
    (piece,) = cut(made.model(end), 2, "chains")
    assert piece == Segment(layers=(0, 1), inputs=(x.number, weight.number), outputs=(end.number,))


@pytest.mark.parametrize(("between", "expected"), [
    ("neg.default", [(0, 2), (1,)]), ("sin_.default", [(0,), (1,), (2,)]),
])  # fmt: skip
def test_a_layer_is_not_moved_before_one_that_writes_what_it_reads(
    between: str, expected: list[tuple[int, ...]]
) -> None:
    made = ByHand()
    x, weight = made.leaf("input", torch.randn(2, 2)), made.leaf("buffer", torch.randn(2, 2))
    y = made.add("relu.default", x)
    other = made.add(between, weight)
    end = made.add("mm.default", y, weight)
    captured = made.model(end, other)
    assert groups(captured, 2, "chains") == expected


OPERATORS = ("relu.default", "tanh.default", "relu_.default", "neg.default", "view", "split", "add", "mul_", "mm")


@settings(deadline=None)
@given(choices=st.lists(st.tuples(st.sampled_from(OPERATORS), st.integers(0, 20), st.integers(0, 20)), min_size=1,
                        max_size=12), g=st.integers(1, 5), method=st.sampled_from(METHODS))
def test_any_graph_is_cut_into_pieces_that_make_what_it_makes(
    choices: list[tuple[str, int, int]], g: int, method: str
) -> None:
    made = ByHand()
    weight = made.weight(4, 4)
    values = [made.leaf("input", torch.randn(4, 4))]
    for operator, one, other in choices:
        x, y = values[one % len(values)], values[other % len(values)]
        added: Value | list[Value]
        if operator == "view":
            added = made.add("view.default", made.add("view.default", x, [16]), [4, 4])
        elif operator == "split":
            halves = made.add("split.Tensor", x, 2)
            added = made.add("cat.default", [halves[1], halves[0]])
        elif operator in ("add", "mul_", "mm"):
            added = made.add({"add": "add.Tensor", "mul_": "mul_.Tensor", "mm": "mm.default"}[operator], x,
                             weight if operator == "mm" else y)
        else:
            added = made.add(operator, x)
        values.append(added)
    # Layers that ran when the model was written changed its leaves: they begin anew.
    captured = made.model(values[-1], values[len(values) // 2])
    captured.tensors = {number: torch.randn(4, 4) for number in captured.tensors}
    pieces = cut(captured, g, method)
    assert sorted(index for piece in pieces for index in piece.layers) == list(range(len(captured.layers)))
    functions = [runnable(brick_of(captured, piece, "infer", "fp32", 0)) for piece in pieces]
    outputs = check_chained(captured, pieces, functions)
    for ours, theirs in zip(outputs, run_whole(captured), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_what_is_written_in_place_has_an_order() -> None:
    made = ByHand()
    x = made.add("neg.default", made.leaf("input", torch.randn(2, 2)))
    made.add("relu_.default", x)  # nobody reads what it gives
    left, right = made.add("tanh.default", x), made.add("sin.default", x)
    made.add("cos_.default", x)
    captured = made.model(made.add("add.Tensor", left, right), made.add("exp.default", x))
    pieces = cut(captured, 1, "chains")
    assert [captured.layers[piece.layers[0]].operator.split(".")[1] for piece in pieces] == [
        "neg", "relu_", "tanh", "sin", "cos_", "add", "exp"]
    assert written_before(captured, pieces) == [(), (0,), (1,), (1,), (1, 2, 3), (), (4,)]
