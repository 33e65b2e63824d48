"""What bricks hold and how much work they do, against numbers worked out by hand."""

import json
from typing import Any

import pytest
import torch
from support.hand_made_bricks import a_brick, a_gradient_sum, a_layer, an_input, pointwise, product, value

from charact.bricks.brick import Brick
from charact.bricks.executable import runnable
from charact.measure.bricks.inputs import InputPool
from charact.measure.bricks.memory import described, memory_and_work

CPU = torch.device("cpu")
ROWS, WIDTH = 64, 32
ACTIVATION = 4 * ROWS * WIDTH
WEIGHT = 4 * WIDTH * WIDTH
FLOP = 2 * ROWS * WIDTH * WIDTH


def told(brick: Brick) -> dict[str, Any]:
    columns, uncounted = memory_and_work(brick, runnable(brick), InputPool([brick], CPU),
                                         training=brick.mode == "train")
    assert uncounted == []
    return columns


def test_a_product_in_inference() -> None:
    with torch.inference_mode():
        assert told(product(ROWS, WIDTH)) == {
            "flop": FLOP, "bytes": 2 * ACTIVATION + WEIGHT, "outputs_bytes": ACTIVATION, "saved_bytes": None,
            "peak_bytes": ACTIVATION, "held": None}


def test_a_product_in_training_holds_both_gradients_at_once() -> None:
    columns = told(product(ROWS, WIDTH, mode="train"))
    assert columns["flop"] == 3 * FLOP
    assert columns["outputs_bytes"] == ACTIVATION
    assert columns["saved_bytes"] == 0  # inputs alone
    assert columns["peak_bytes"] == ACTIVATION + (ACTIVATION + ACTIVATION + WEIGHT)  # with its output's gradient
    assert json.loads(columns["held"]) == {
        "saved_inputs": [0, 1],
        "outputs": [{"bytes": ACTIVATION, "input": None, "saved": False, "gradient": True}]}


def activated(operator: str) -> Brick:
    """A product and what is applied to it."""
    inputs = [an_input(ROWS, WIDTH, grad=True), an_input(WIDTH, WIDTH, kind="weight", grad=True)]
    return a_brick(inputs, [a_layer("mm.default", [value(0), value(1)], 2), a_layer(operator, [value(2)], 3)], [3],
                   mode="train")


@pytest.mark.parametrize(("operator", "saved"), [
    ("gelu.default", ACTIVATION),  # needs what it was given
    ("relu.default", 0),  # needs its result, which is the brick's
    ("relu_.default", 0),
])
def test_what_is_held_for_the_backward_pass_beside_inputs_and_outputs(operator: str, saved: int) -> None:
    columns = told(activated(operator))
    assert columns["saved_bytes"] == saved
    assert json.loads(columns["held"])["outputs"][0]["saved"] == (saved == 0)


def test_what_is_seen_otherwise_lies_in_its_input() -> None:
    brick = a_brick([an_input(ROWS, WIDTH, grad=True)], [a_layer("t.default", [value(0)], 1)], [1], mode="train")
    assert json.loads(told(brick)["held"]) == {
        "saved_inputs": [], "outputs": [{"bytes": ACTIVATION, "input": 0, "saved": False, "gradient": True}]}


def test_the_gradient_of_an_output_is_free_once_it_was_used() -> None:
    """Of two exponentials: it is gone before that of the input is made."""
    layers = [a_layer("exp.default", [value(0)], 1), a_layer("exp.default", [value(1)], 2)]
    columns = told(a_brick([an_input(ROWS, WIDTH, grad=True)], layers, [2], mode="train"))
    # Output and first result stay; of gradients there are two at once, not three.
    assert columns["peak_bytes"] == 4 * ACTIVATION


def test_work_in_place_needs_no_memory() -> None:
    with torch.inference_mode():
        columns = told(pointwise("relu_.default", ROWS, WIDTH))
    assert (columns["outputs_bytes"], columns["peak_bytes"], columns["flop"]) == (0, 0, None)


def test_what_is_let_go_inside_counts_at_the_peak_alone() -> None:
    layers = [a_layer("exp.default", [value(0)], 1), a_layer("sum.default", [value(1)], 2)]
    with torch.inference_mode():
        columns = told(a_brick([an_input(ROWS, WIDTH)], layers, [2]))
    assert columns["outputs_bytes"] == 4
    assert columns["peak_bytes"] in (ACTIVATION, ACTIVATION + 4)


def test_a_sum_of_gradients_has_no_backward_pass() -> None:
    columns, _ = memory_and_work(brick := a_gradient_sum(ROWS, WIDTH), runnable(brick), InputPool([brick], CPU),
                                 training=True)
    assert columns["saved_bytes"] is None
    assert columns["bytes"] == 3 * ACTIVATION


def test_what_a_brick_says_of_itself() -> None:
    brick = product(ROWS, WIDTH)
    assert described(brick) == {"brick": brick.id, "kind": "sequence", "num_layers": 1, "layer_types": ["mm"],
                                "input_shapes": [[ROWS, WIDTH], [WIDTH, WIDTH]], "literals": [],
                                "weights_bytes": WEIGHT}
