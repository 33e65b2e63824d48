"""Bricks that run: what they give is what the model gives, whatever it is cut into."""

import weakref
from typing import Any

import pytest
import torch
from support.captured_by_hand import ByHand, branches, check_chained, configuration, run_whole
from torch import Tensor

from charact.bricks import aten
from charact.bricks.aten import runnable, written_values
from charact.bricks.capture.capture import capture
from charact.bricks.capture.recording import Source
from charact.bricks.commands._models import sources_of
from charact.bricks.suite.brick import Brick, brick_from_json, brick_of, brick_to_json, gradient_sum_brick
from charact.bricks.suite.captured_graph import CapturedModel, Layer, TensorType
from charact.bricks.suite.composition import cut_model
from charact.bricks.suite.layer_sequences import METHODS, cut

SQUARE = TensorType("float32", (4, 4), (4, 1))
SLOW = ("transformer", "resnet18", "googlenet", "seq2seq")
MODELS = {"resnet18": 32, "googlenet": 32, "transformer": 6, "rnn_lm": 6, "seq2seq": 6}


def check_all_cuts(captured: CapturedModel, mode: str) -> list[Tensor]:
    """Chain the bricks of every cut, each with what its layers give; gives the last one's outputs."""
    outputs: list[Tensor] = []
    for method in METHODS:
        for g in (1, 2, 4):
            pieces = cut(captured, g, method)
            functions: dict[str, Any] = {}
            bricks = [brick_of(captured, piece, mode, "fp32", 0) for piece in pieces]
            for brick in bricks:
                # As a reader of the suite has it.
                functions.setdefault(brick.id, runnable(brick_from_json(brick_to_json(brick))))
            outputs = check_chained(captured, pieces, [functions[brick.id] for brick in bricks])
    return outputs


@pytest.mark.parametrize("training", [False, True])
def test_bricks_of_branches_make_the_models_output(training: bool) -> None:
    captured = branches(training=training)
    (output,) = check_all_cuts(captured, "train" if training else "infer")
    torch.testing.assert_close(output, run_whole(captured)[0], rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in MODELS])
def test_bricks_of_a_workload_make_what_the_workload_gives(name: str) -> None:
    (source,) = sources_of([name], input_sizes=[MODELS[name]], batch_sizes=[2])
    outputs = check_all_cuts(capture(source), "infer")
    for ours, theirs in zip(outputs, given_by(source), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.slow
def test_bricks_of_a_training_make_its_loss() -> None:
    (source,) = sources_of(["resnet18"], input_sizes=[32], batch_sizes=[2], modes=["train"])
    (loss,) = check_all_cuts(capture(source), "train")
    torch.testing.assert_close(loss, given_by(source)[0], rtol=0, atol=0)


def given_by(source: Source) -> list[Tensor]:
    whole = source.build()
    with whole.real_run(), torch.no_grad():
        outputs: list[Tensor] = whole(*whole.fresh_inputs())[0]
    return outputs


def test_the_edges_of_a_composition_are_the_models() -> None:
    captured = branches(training=True)
    model = cut_model(captured, configuration(mode="train"), 2, "chains")
    composition, bricks = model.composition, {brick.id: brick for brick in model.bricks}
    leaves: list[list[Tensor | None]] = [
        [captured.tensors.get(value) for value in piece.inputs] for piece in cut(captured, 2, "chains")]
    made: list[tuple[Tensor, ...]] = []
    with torch.no_grad():
        for placed, own in zip(composition.pieces, leaves, strict=True):
            inputs = [own[number] if source is None else made[source[0]][source[1]]
                      for number, source in enumerate(placed.inputs)]
            assert all(each is not None for each in inputs)
            made.append(runnable(bricks[placed.brick])([each for each in inputs if each is not None]))
    (source,) = composition.outputs
    assert source is not None
    torch.testing.assert_close(made[source[0]][source[1]], run_whole(captured)[0], rtol=0, atol=0)


def single(operator: str, *inputs: Tensor, rest: tuple[Any, ...] = (), **kwargs: Any) -> Brick:
    made = ByHand()
    out = made.add(operator, *(made.leaf("input", each) for each in inputs), *rest, **kwargs)
    captured = made.model(*(out if isinstance(out, list) else [out]))
    (piece,) = cut(captured, 1, "chains")
    return brick_of(captured, piece, "infer", "fp32", 0)


def direct_calls() -> list[tuple[str, tuple[Tensor, ...], tuple[Any, ...], dict[str, Any]]]:
    """Operators whose bindings are called, with arguments in all the forms that captures have."""
    x, y, square = torch.rand(2, 6) + 0.5, torch.rand(2, 6), torch.rand(6, 6)
    image, deep, batches = torch.rand(2, 4, 8, 8), torch.rand(1, 2, 4, 4, 4), torch.rand(2, 3, 6)
    pointwise = ["abs", "cos", "erf", "exp", "neg", "relu", "relu_", "rsqrt", "sigmoid", "silu", "silu_", "sin", "sqrt",
                 "tanh", "hardswish", "hardswish_", "hardsigmoid", "clone", "contiguous", "gelu", "elu"]
    calls: list[tuple[str, tuple[Tensor, ...], tuple[Any, ...], dict[str, Any]]] = [
        (f"{name}.default", (x,), (), {}) for name in pointwise]
    calls += [
        ("add.Tensor", (x, y), (), {"alpha": 2}), ("add.Tensor", (x,), (2,), {}), ("add_.Tensor", (x, y), (), {}),
        ("sub.Tensor", (x, y), (), {}), ("mul.Tensor", (x, y), (), {}), ("mul.Tensor", (x,), (0.5,), {}),
        ("mul_.Tensor", (x, y), (), {}), ("div.Tensor", (x, y), (), {}), ("div.Tensor", (x,), (3,), {}),
        ("pow.Tensor_Scalar", (x,), (2,), {}), ("gelu.default", (x,), (), {"approximate": "tanh"}),
        ("hardtanh.default", (x,), (0.0, 6.0), {}), ("hardtanh_.default", (x,), (0.0, 0.7), {}),
        ("leaky_relu.default", (x,), (0.1,), {}), ("clamp.default", (x,), (0.6, 0.9), {}),
        ("mm.default", (x, square), (), {}), ("matmul.default", (batches, square), (), {}),
        ("bmm.default", (batches, batches.transpose(1, 2).contiguous()), (), {}),
        ("addmm.default", (y, x, square), (), {"beta": 0.5, "alpha": 2}), ("linear.default", (x, square), (), {}),
        ("linear.default", (x, square, square[0].clone()), (), {}), ("mean.dim", (x,), ([1], True), {}),
        ("mean.default", (x,), (), {}), ("sum.dim_IntList", (x,), ([-1], False), {"dtype": {"dtype": "float64"}}),
        ("sum.default", (x,), (), {}), ("softmax.int", (x,), (-1,), {}),
        ("softmax.int", (x,), (1, {"dtype": "float64"}), {}), ("log_softmax.int", (x,), (-1,), {}),
        ("dropout.default", (x,), (0.5, False), {}), ("dropout.default", (x,), (0.5, True), {}),
        ("view.default", (x,), ([3, 4],), {}), ("reshape.default", (x,), ([-1],), {}),
        ("permute.default", (batches,), ([2, 0, 1],), {}), ("transpose.int", (x,), (0, 1), {}),
        ("t.default", (x,), (), {}),
        ("unsqueeze.default", (x,), (1,), {}), ("squeeze.dim", (x[:1].clone(),), (0,), {}),
        ("squeeze.default", (x[:1].clone(),), (), {}), ("flatten.using_ints", (image,), (1,), {}),
        ("expand.default", (x[:1].clone(),), ([3, -1],), {}), ("select.int", (x,), (1, 2), {}),
        ("chunk.default", (x,), (3, 1), {}), ("unbind.int", (x,), (1,), {}),
        ("where.self", (x > 1, x, y), (), {}), ("masked_fill.Scalar", (x, x > 1), (-1.0,), {}),
        ("embedding.default", (square, torch.tensor([1, 5])), (2, False, False), {}),
        ("conv1d.default", (batches, torch.rand(5, 3, 2)), (None, [1], [1]), {}),
        ("conv2d.default", (image, torch.rand(4, 2, 3, 3), torch.rand(4)), ([2, 2], [1, 1], [1, 1], 2), {}),
        ("conv2d.padding", (image, torch.rand(4, 4, 3, 3)), (None, [1, 1], "same"), {}),
        ("conv3d.default", (deep, torch.rand(3, 2, 2, 2, 2)), (), {}),
        ("max_pool2d.default", (image,), ([3, 3], [2, 2], [1, 1], [1, 1], True), {}),
        ("avg_pool2d.default", (image,), ([2, 2], [2, 2], [0, 0], False, True), {}),
        ("adaptive_avg_pool2d.default", (image,), ([1, 1],), {}),
        ("batch_norm.default", (image, *(torch.rand(4) for _ in range(4))), (False, 0.1, 1e-5, True), {}),
        ("layer_norm.default", (x,), ([6],), {}), ("group_norm.default", (image,), (2,), {}),
        ("scaled_dot_product_attention.default", (batches, batches.clone(), batches.clone()), (None, 0.0, True), {}),
        ("scaled_dot_product_attention.default", (batches, batches.clone(), batches.clone()), (), {"scale": 0.5}),
    ]
    return calls


@pytest.mark.parametrize("call", direct_calls(), ids=lambda call: call[0])
def test_a_binding_gives_what_the_operator_gives(
    call: tuple[str, tuple[Tensor, ...], tuple[Any, ...], dict[str, Any]]
) -> None:
    operator, inputs, rest, kwargs = call
    made = ByHand()
    leaves = [made.leaf("input", each.clone()) for each in inputs]
    torch.manual_seed(0)
    result = made.add(operator, *leaves, *rest, **kwargs)
    values = result if isinstance(result, list) else [result]
    captured = made.model(*values)
    (piece,) = cut(captured, 1, "chains")
    assert operator.partition(".")[0] in aten._DIRECT
    torch.manual_seed(0)
    found = runnable(brick_of(captured, piece, "infer", "fp32", 0))([each.clone() for each in inputs])
    for ours, value in zip(found, values, strict=True):
        theirs = made.tensors[value.number]
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_lists_of_tensors_and_recurrent_layers_go_through_bindings() -> None:
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    made = ByHand()
    pair = [made.leaf("input", x), made.leaf("input", y)]
    both = [made.add("cat.default", pair, 1), made.add("stack.default", pair)]
    text, state = made.leaf("input", torch.rand(5, 2, 3)), [made.leaf("input", torch.rand(1, 2, 4)) for _ in range(2)]
    options = (True, 1, 0.0, False, False, False)
    for name, layer in (("lstm", torch.nn.LSTM(3, 4)), ("gru", torch.nn.GRU(3, 4))):
        weights = [made.leaf("weight", weight.detach()) for weight in layer.parameters()]
        both += made.add(f"{name}.input", text, state if name == "lstm" else state[0], weights, *options)
    check_all_cuts(made.model(*both), "infer")


def test_every_binding_is_tried() -> None:
    tried = {call[0].partition(".")[0] for call in direct_calls()} | {"cat", "stack", "lstm", "gru"}
    assert tried == aten._DIRECT


def test_literals_become_what_pytorch_wants() -> None:
    def run(operator: str, *args: Any, **kwargs: Any) -> Tensor:
        made = ByHand()
        captured = made.model(made.add(operator, *args, **kwargs))
        (piece,) = cut(captured, 1, "chains")
        (found,) = runnable(brick_of(captured, piece, "infer", "fp32", 0))([])
        return found

    zeros = run("zeros.default", [2, 3], dtype={"dtype": "int64"}, device={"device": True})
    assert (zeros.shape, zeros.dtype, zeros.device.type) == ((2, 3), torch.int64, "cpu")
    assert run("full.default", [2], {"float": "-inf"}).tolist() == [-torch.inf] * 2
    assert run("full.default", [1], {"complex": [1, 2]}).tolist() == [1 + 2j]
    image = run("empty.memory_format", [1, 2, 3, 4], memory_format={"memory_format": "channels_last"})
    assert image.stride() == (24, 1, 8, 2)


def test_values_that_are_no_longer_read_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def watched(x: Tensor) -> Tensor:
        out = x.clone()
        made.append(weakref.ref(out))
        alive.append(sum(one() is not None for one in made))
        return out

    monkeypatch.setattr(aten, "_binding", lambda operator: watched)
    model = ByHand()
    x = model.leaf("input", torch.rand(2))
    for _ in range(5):
        x = model.add("clone.default", x)
    captured = model.model(x)
    (piece,) = cut(captured, 5, "chains")
    runnable(brick_of(captured, piece, "infer", "fp32", 0))([torch.rand(2)])
    # What is read and what is made, as in a model that overwrites its variable.
    assert alive == [1, 2, 2, 2, 2]


@pytest.mark.parametrize(("operator", "num_tensors", "kwargs", "writes"), [
    ("relu_.default", 1, {}, [0]), ("relu.default", 1, {}, []), ("add_.Tensor", 2, {}, [0]),
    ("copy_.default", 2, {}, [0]),
])  # fmt: skip
def test_schemas_tell_what_is_written(operator: str, num_tensors: int, kwargs: dict[str, Any], writes: list[int]
                                      ) -> None:
    args = [{"value": number} for number in range(num_tensors)]
    assert written_values(Layer(f"aten.{operator}", args, kwargs, (2,), False)) == writes


def test_a_sum_of_gradients_is_a_sum() -> None:
    (total,) = runnable(gradient_sum_brick(SQUARE, "fp32", 0))([torch.ones(4, 4), torch.full((4, 4), 2.0)])
    torch.testing.assert_close(total, torch.full((4, 4), 3.0))


def test_gradients_flow_through_a_brick() -> None:
    brick = single("mm.default", torch.rand(2, 3), torch.rand(3, 4))
    x, weight = torch.rand(2, 3, requires_grad=True), torch.rand(3, 4, requires_grad=True)
    (out,) = runnable(brick)([x, weight])
    out.sum().backward()
    torch.testing.assert_close(weight.grad, x.detach().sum(0)[:, None].expand(3, 4))
