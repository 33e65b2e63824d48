"""What bricks are called with: which weights, which activations, and what a limit of memory changes."""

import pytest
import torch
from support.hand_made_bricks import a_brick, a_layer, an_input, pointwise, product, value
from torch import Tensor

from charact.bricks.suite.brick import Brick
from charact.bricks.timing.inputs import Arguments, InputPool, copied, key_of

CPU = torch.device("cpu")
WEIGHT_BYTES = 16 * 16 * 4


def of(brick: Brick, *, training: bool = False, limit_bytes: int | None = None) -> Arguments:
    return Arguments(brick, InputPool([brick], CPU, limit_bytes), training=training)


def test_weights_take_turns() -> None:
    arguments = of(product(context_bytes=4 * WEIGHT_BYTES))
    places = [arguments.weights()[1].data_ptr() for _ in range(12)]
    assert len(set(places)) == 4
    assert places[-4:] == places[-8:-4]  # always the one that was taken longest ago


def test_weights_of_which_more_is_told_stay_where_they_are() -> None:
    indices = an_input(4, kind="buffer", dtype="int64", sample={"low": 2, "high": 2})
    arguments = of(a_brick([indices], [a_layer("abs.default", [value(0)], 1)], [1], context_bytes=10**6))
    first, second = (arguments.weights()[0] for _ in range(2))
    assert first.tolist() == [2, 2, 2, 2]
    assert first is second


def test_weights_that_are_written_are_copies() -> None:
    brick = a_brick([an_input(16, 16, kind="buffer")], [a_layer("zero_.default", [value(0)], 1)], [1], written=[0])
    arguments = of(brick)  # a single place
    arguments.weights()[0].zero_()
    assert arguments.weights()[0].count_nonzero() == 256


def test_activations_are_written_anew_for_each_call() -> None:
    arguments = of(pointwise("relu_.default"))
    first = arguments.others()[0]
    assert set(first.flatten().tolist()) == {-1.0, 1.0}
    second = arguments.others()[0]
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, second)
    first.relu_()
    assert torch.equal(arguments.others()[0], second)


def test_only_what_is_written_in_place_is_restored() -> None:
    kept, changed = of(pointwise("relu.default")), of(pointwise("relu_.default"))
    others = kept.others()
    assert kept.restored(others) is others
    others = changed.others()
    others[0].relu_()
    assert set(changed.restored(others)[0].flatten().tolist()) == {-1.0, 1.0}


def test_constants_stay_where_they_are() -> None:
    brick = a_brick([an_input(4, kind="constant"), an_input(4)], [a_layer("add.Tensor", [value(0), value(1)], 2)], [2])
    arguments = of(brick)
    first, second = arguments.others(), arguments.others()
    assert first[0] is second[0]
    assert first[1] is not second[1]


def test_in_training_each_call_has_new_leaves() -> None:
    arguments = of(product(mode="train"), training=True)
    tensors = arguments.weights() | arguments.others()
    first, second = arguments.call_with(tensors), arguments.call_with(tensors)
    torch.mm(*first).sum().backward()
    assert all(leaf.is_leaf and leaf.grad is not None for leaf in first)
    assert all(leaf.is_leaf and leaf.requires_grad and leaf.grad is None for leaf in second)
    assert [leaf.data_ptr() for leaf in second] == [tensors[number].data_ptr() for number in (0, 1)]


def test_in_training_what_is_written_in_place_is_no_leaf() -> None:
    arguments = of(pointwise("relu_.default", mode="train"), training=True)
    (given,) = arguments.call_with(arguments.others())
    assert given.requires_grad
    assert given.relu_().grad_fn is not None  # a leaf would refuse


def test_what_carries_no_gradient_is_given_as_it_is() -> None:
    arguments = of(pointwise("relu.default"), training=True)
    others = arguments.others()
    assert arguments.call_with(others)[0] is others[0]


def test_an_input_that_stands_twice_is_one_tensor() -> None:
    twice = [an_input(4, grad=True), an_input(4, grad=True, repeated=0)]
    brick = a_brick(twice, [a_layer("mul.Tensor", [value(0), value(1)], 2)], [2], mode="train")
    arguments = of(brick, training=True)
    first, second = arguments.call_with(arguments.others())
    assert first is second


def test_views_share_their_memory_where_something_is_written() -> None:
    def sharing(written: list[int]) -> bool:
        inputs = [an_input(4, 6), an_input(24, repeated=0)]
        brick = a_brick(inputs, [a_layer("add_.Tensor", [value(0), 1.0], 2)], [2], written=written)
        others = of(brick).others()
        return others[0].untyped_storage().data_ptr() == others[1].untyped_storage().data_ptr()

    assert sharing([0])
    assert not sharing([])


@pytest.mark.parametrize(("shape", "stride"), [
    ((3, 4), (4, 1)), ((3, 4), (1, 3)), ((3, 4), (0, 1)), ((3, 4), (8, 2)), ((0, 4), (4, 1)), ((), ()),
])
def test_copies_have_the_same_strides(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    tensor = torch.arange(40.0).as_strided(shape, stride)
    copy = copied(tensor)
    assert (copy.shape, copy.stride()) == (tensor.shape, tensor.stride())
    assert torch.equal(copy, tensor)
    assert copy.numel() == 0 or copy.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("stride", [(4, 1), (1, 3), (8, 2)])
def test_copies_of_a_part_hold_that_part(stride: tuple[int, int]) -> None:
    tensor = torch.arange(10_000.0).as_strided((3, 4), stride, 5000)
    copy = copied(tensor)
    assert torch.equal(copy, tensor)
    assert copy.untyped_storage().nbytes() <= 4 * 24


class TestWithoutMemory:
    def test_weights_are_drawn_anew(self) -> None:
        arguments = of(product(context_bytes=4 * WEIGHT_BYTES), limit_bytes=WEIGHT_BYTES - 1)
        first, second = (arguments.weights()[1] for _ in range(2))
        assert not torch.equal(first, second)

    def test_activations_are_drawn_anew_for_each_visit(self) -> None:
        brick = pointwise("relu.default")
        pool = InputPool([brick], CPU, 0)
        first, second = (pool.pristine(brick.inputs[0], key_of(brick.inputs[0])) for _ in range(2))
        assert first is second
        pool.end_visit()
        assert not torch.equal(first, pool.pristine(brick.inputs[0], key_of(brick.inputs[0])))

    def test_activations_take_no_room_from_weights(self) -> None:
        brick = product(rows=16, context_bytes=2 * WEIGHT_BYTES)
        pool = InputPool([brick], CPU, 2 * WEIGHT_BYTES)
        kept = [pool.pristine(brick.inputs[0], key) for key in ("one", "other", "too many")]
        pool.end_visit()
        found = [pool.pristine(brick.inputs[0], key) for key in ("one", "other", "too many")]
        assert [one is other for one, other in zip(kept, found, strict=True)] == [True, True, False]
        arguments = Arguments(brick, pool, training=False)
        assert len({arguments.weights()[1].data_ptr() for _ in range(4)}) == 2

    def test_strides_and_types_are_the_inputs_own(self) -> None:
        given = an_input(3, 4, stride=(1, 3), dtype="bfloat16")
        (drawn,) = of(a_brick([given], [a_layer("relu.default", [value(0)], 1)], [1])).others().values()
        assert isinstance(drawn, Tensor)
        assert (drawn.stride(), drawn.dtype) == ((1, 3), torch.bfloat16)
