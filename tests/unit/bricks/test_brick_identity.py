"""A brick's identity: what it computes, and nothing else; and its JSON, there and back."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.captured_by_hand import ByHand, branches

from charact.bricks.suite.brick import (
    Brick,
    brick_from_json,
    brick_of,
    brick_to_json,
    canonical,
    gradient_sum_brick,
    identified,
    input_of,
    update_brick,
)
from charact.bricks.suite.captured_graph import CapturedModel, Layer, TensorType, Update
from charact.bricks.suite.layer_sequences import cut

SQUARE = TensorType("float32", (4, 4), (4, 1))


def bricks(captured: CapturedModel, mode: str = "infer", g: int = 2) -> list[Brick]:
    return [brick_of(captured, piece, mode, "fp32", 0) for piece in cut(captured, g, "chains")]


def ids(captured: CapturedModel, mode: str = "infer", precision: str = "fp32") -> set[str]:
    return {brick_of(captured, piece, mode, precision, 0).id for piece in cut(captured, 2, "chains")}


def test_names_and_weights_change_no_id() -> None:
    assert ids(branches()) == ids(branches(module="other.names", seed=1))


def test_how_values_look_changes_no_id() -> None:
    captured = branches()
    before = ids(captured)
    captured.samples = {value: {"constant": 0.0} for value in captured.samples}
    assert ids(captured) == before


@pytest.mark.parametrize("changed", [{"stride": 2}, {"padding": 0}, {"eps": 1e-3}])
def test_what_is_computed_changes_the_id(changed: dict[str, Any]) -> None:
    first, other = bricks(branches())[0], bricks(branches(**changed))[0]
    assert first.layer_types == other.layer_types == ["conv2d", "batch_norm"]
    assert first.id != other.id


def test_the_numbers_type_the_mode_and_the_precision_change_all_ids() -> None:
    made = ByHand()
    captured = made.model(made.add("relu.default", made.leaf("input", torch.randn(2, 2))))
    halves = ByHand()
    half = halves.model(halves.add("relu.default", halves.leaf("input", torch.randn(2, 2, dtype=torch.float16))))
    found = [ids(captured), ids(half), ids(captured, mode="train"), ids(captured, precision="tf32")]
    assert len(set().union(*found)) == 4


def test_the_order_of_the_axes_in_memory_changes_the_id() -> None:
    found = set()
    for tensor in (torch.randn(3, 2), torch.randn(2, 3).t()):
        made = ByHand()
        found |= ids(made.model(made.add("relu.default", made.leaf("input", tensor))))
    assert len(found) == 2


def test_an_id_is_the_same_everywhere_and_always() -> None:
    made = ByHand()
    captured = made.model(made.add("relu.default", made.leaf("input", torch.randn(2, 2))))
    assert ids(captured) == {"0d85a63ddc3c338c"}


def test_values_are_numbered_anew() -> None:
    first = bricks(branches())[0]
    assert first.layers[0].args[:2] == [{"value": 0}, {"value": 1}]
    assert first.layers[1].args[:5] == [{"value": number} for number in (6, 2, 3, 4, 5)]
    assert (first.layers[0].outputs, first.layers[1].outputs, first.outputs) == ((6,), (7,), (7,))
    assert [each.kind for each in first.inputs] == ["activation", "weight", "weight", "weight", "buffer", "buffer"]
    assert {layer.module for brick in bricks(branches()) for layer in brick.layers} == {""}


def test_inputs_that_are_written_to_are_told() -> None:
    captured = branches()
    assert [sorted(brick.written) for brick in bricks(captured)] == [[], [0], [], [], []]
    # In training a norm writes its running statistics, whatever its schema says.
    assert sorted(bricks(branches(training=True), "train")[0].written) == [4, 5]


def test_writing_through_a_view_writes_to_the_input() -> None:
    made = ByHand()
    x, y = made.leaf("input", torch.randn(4, 4)), made.leaf("input", torch.randn(4, 4))
    end = made.add("add_.Tensor", made.add("view.default", y, [4, 4]), x)
    captured = made.model(end)
    (piece,) = cut(captured, 2, "heavy")
    assert brick_of(captured, piece, "infer", "fp32", 0).written == {0}
    assert piece.inputs == (y.number, x.number)


def test_inputs_that_share_a_storage_are_told_and_count_only_where_something_is_written() -> None:
    def found(operator: str, shared: bool) -> Brick:
        made = ByHand()
        whole = torch.randn(2, 4)
        x = made.leaf("input", whole)
        y = made.leaf("input", whole[:] if shared else torch.randn(2, 4))
        return bricks(made.model(made.add(operator, x, y)))[0]

    assert [each.repeated for each in found("add.Tensor", shared=True).inputs] == [None, 0]
    assert [each.repeated for each in found("add.Tensor", shared=False).inputs] == [None, None]
    assert found("add.Tensor", shared=True).id == found("add.Tensor", shared=False).id
    assert found("add_.Tensor", shared=True).id != found("add_.Tensor", shared=False).id


def test_updates_and_sums_of_gradients_are_bricks() -> None:
    update = update_brick(Update("Adam", {"lr": 0.1, "betas": [0.9, 0.99]}, SQUARE), "fp32", 0)
    other = update_brick(Update("Adam", {"lr": 0.2, "betas": [0.9, 0.99]}, SQUARE), "fp32", 64)
    assert (update.kind, update.layer_types, update.written) == ("update", ["update"], {0})
    assert update.id != other.id
    total = gradient_sum_brick(SQUARE, "fp32", 0)
    assert (total.kind, total.mode, total.layer_types) == ("gradient_sum", "infer", ["add"])
    for brick in (update, total):
        assert brick_from_json(json.loads(canonical(brick_to_json(brick)))) == brick


def test_an_argument_that_is_called_value_is_a_number() -> None:
    layer = Layer("aten.addcmul.default", [{"value": 5}, [{"value": 6}]], {"value": 5}, (7,), False)
    renamed = layer.renamed({5: 0, 6: 1}.__getitem__)
    assert (renamed.args, renamed.kwargs) == ([{"value": 0}, [{"value": 1}]], {"value": 5})


COUNTS = st.integers(0, 9)
LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([{"dtype": "float32"}, {"device": True}, {"float": "inf"}, {"value": 0}, "tanh"]),
    lambda inner: st.lists(inner, max_size=3), max_leaves=5)  # fmt: skip
TYPES = st.lists(st.tuples(COUNTS, COUNTS), max_size=3).flatmap(lambda axes: st.builds(
    TensorType, st.sampled_from(["float32", "int64"]), st.just(tuple(size for size, _ in axes)),
    st.just(tuple(stride for _, stride in axes))))  # fmt: skip
INPUTS = st.builds(input_of, TYPES, st.sampled_from(["activation", "weight", "buffer", "constant"]),
                   requires_grad=st.booleans(), sample=st.just({"constant": 0.0}), repeated=st.none() | st.just(0))


@st.composite
def any_brick(draw: st.DrawFn) -> Brick:
    inputs = draw(st.lists(INPUTS, min_size=1, max_size=4))
    layers, known = [], len(inputs)
    for _ in range(draw(st.integers(1, 3))):
        made = draw(st.lists(st.booleans(), max_size=2))
        outputs = tuple(known + sum(made[:place]) if one else None for place, one in enumerate(made))
        known += sum(made)
        layers.append(Layer("aten.any.default", draw(st.lists(LITERALS, max_size=3)),
                            draw(st.dictionaries(st.sampled_from(["dim", "alpha"]), LITERALS, max_size=2)), outputs,
                            draw(st.booleans())))
    return identified(Brick(
        kind="sequence", mode=draw(st.sampled_from(["train", "infer"])), precision="fp32", inputs=tuple(inputs),
        layers=tuple(layers), outputs=tuple(draw(st.lists(st.integers(0, known - 1), unique=True))),
        written=frozenset(draw(st.sets(st.integers(0, len(inputs) - 1)))), context_bytes=draw(COUNTS)))


@settings(deadline=None)
@given(brick=any_brick())
def test_json_gives_a_brick_back(brick: Brick) -> None:
    assert brick_from_json(json.loads(canonical(brick_to_json(brick)))) == brick


@pytest.mark.parametrize(("place", "value"), [
    (["kind"], "other"), (["mode"], 1), (["outputs"], [9]), (["outputs"], [-1]), (["outputs"], "0"), (["written"], [5]),
    (["layers", 0, "args", 0, "value"], 4), (["layers", 0, "args"], {}), (["layers", 0, "outputs"], [7]),
    (["layers", 0, "operator"], "relu"), (["layers", 0, "operator"], 1), (["layers"], 1), (["inputs"], None),
    (["inputs", 0, "shape"], [2, 2, 2]), (["inputs", 0, "shape"], [True, 2]), (["inputs", 0, "dtype"], 1),
    (["inputs", 0, "dtype"], "float3"), (["inputs", 0, "kind"], "secret"), (["inputs", 0, "sample"], 1),
    (["mode"], "nap"), (["kind"], "update"),
    (["context_bytes"], 0.5), (["layers", 0, "args", 0, "value"], "x"), (["layers", 0, "args", 0, "value"], [[]]),
])  # fmt: skip
def test_what_is_no_brick_is_refused(place: list[Any], value: Any) -> None:
    made = ByHand()
    brick = bricks(made.model(made.add("relu.default", made.leaf("input", torch.randn(2, 2)))))[0]
    entry: Any = json.loads(canonical(brick_to_json(brick)))
    inner = entry
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(ValueError, match=r"\w"):
        brick_from_json(entry)


@pytest.mark.parametrize("entry", [None, [], {}, 1, "brick", {"kind": "sequence"}])
def test_what_is_not_even_alike_is_refused(entry: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        brick_from_json(entry)
