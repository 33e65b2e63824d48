"""How far apart the uses of a model's weights are."""

import torch
from support.captured_by_hand import ByHand

from charact.bricks.suite.captured_graph import CapturedModel
from charact.bricks.suite.layer_sequences import cut, next_power_of_two, reuse_distances


def recurrent(num_steps: int, *, last: bool = False) -> CapturedModel:
    """Steps of one product with the same weight (64 bytes) each, maybe with a product of its own behind them."""
    made = ByHand()
    weight, state = made.weight(4, 4), made.leaf("input", torch.randn(4, 4))
    for _ in range(num_steps):
        state = made.add("mm.default", state, weight)
    return made.model(made.add("mm.default", state, made.weight(4, 4)) if last else state)


def test_a_weight_that_is_used_once_is_an_iteration_away() -> None:
    found = reuse_distances(recurrent(1))
    assert found.total == 64 + 64  # the weight, and what is made
    assert found.by_layer == {0: 128}


def test_a_weight_that_every_step_uses_is_a_step_away() -> None:
    found = reuse_distances(recurrent(5, last=True))
    assert found.total == 6 * 128
    assert found.by_layer == {0: 128, 1: 128, 2: 128, 3: 128, 4: 2 * 128, 5: 6 * 128}  # the last step: past the end


def test_views_and_what_is_changed_in_place_touch_nothing_new() -> None:
    made = ByHand()
    x = made.leaf("input", torch.randn(4, 4))
    made.add("relu_.default", made.add("t.default", made.add("neg.default", x)))
    assert reuse_distances(made.model(x)).total == 64


def test_a_piece_has_its_farthest_weights_or_the_whole_iteration() -> None:
    captured = recurrent(3, last=True)
    contexts = reuse_distances(captured)
    pieces = cut(captured, 4, "chains")
    assert [contexts.of(piece) for piece in pieces] == [512]
    assert [contexts.of(piece) for piece in cut(captured, 1, "chains")] == [128, 128, 256, 512]
    made = ByHand()
    alone = made.model(made.add("neg.default", made.leaf("input", torch.randn(5, 5))))
    assert [reuse_distances(alone).of(piece) for piece in cut(alone, 1, "chains")] == [128]  # 100 bytes


def test_sizes_are_rounded_up_to_powers_of_two() -> None:
    assert [next_power_of_two(size) for size in (0, 1, 3, 128, 129)] == [0, 1, 4, 128, 256]
