"""Work of bricks against numbers worked out by hand."""

import torch
from support.hand_made_bricks import a_gradient_sum, pointwise, product

from charact.bricks.aten import runnable
from charact.bricks.suite.brick import Brick
from charact.bricks.timing.inputs import InputPool
from charact.bricks.timing.rounds import counted_work, described

CPU = torch.device("cpu")
ROWS, WIDTH = 64, 32
ACTIVATION = 4 * ROWS * WIDTH
WEIGHT = 4 * WIDTH * WIDTH
FLOP = 2 * ROWS * WIDTH * WIDTH


def counted(brick: Brick, *, training: bool) -> dict[str, float | None]:
    work, uncounted = counted_work(brick, runnable(brick), InputPool([brick], CPU), training=training)
    assert uncounted == set()
    return work


def test_inference_counts_the_forward_pass() -> None:
    with torch.inference_mode():
        assert counted(product(ROWS, WIDTH), training=False) == {"flop": FLOP, "bytes": 2 * ACTIVATION + WEIGHT}
        assert counted(pointwise("relu_.default", ROWS, WIDTH), training=False)["flop"] is None


def test_training_counts_the_backward_pass_too() -> None:
    work = counted(product(ROWS, WIDTH, mode="train"), training=True)
    assert work["flop"] == 3 * FLOP
    assert work["bytes"] == 3 * (2 * ACTIVATION + WEIGHT)


def test_a_sum_of_gradients_has_no_backward_pass() -> None:
    assert counted(a_gradient_sum(ROWS, WIDTH), training=True)["bytes"] == 3 * ACTIVATION


def test_columns_that_need_no_run() -> None:
    brick = product(ROWS, WIDTH)
    assert described(brick) == {"brick": brick.id, "kind": "sequence", "num_layers": 1, "layer_types": ["mm"],
                                "input_shapes": [[ROWS, WIDTH], [WIDTH, WIDTH]], "literals": [],
                                "weights_bytes": WEIGHT}
