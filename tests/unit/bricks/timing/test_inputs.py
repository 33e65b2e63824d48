"""Inputs of bricks: ring buffers of weights, fresh activations, copies, leaves, and limits of memory."""

import itertools
import math
from typing import Any

import pytest
import torch
from support.hand_made_bricks import a_brick, a_layer, an_input, pointwise, product, value
from torch import Tensor

from charact.bricks.suite.brick import Brick, BrickInput
from charact.bricks.timing import inputs
from charact.bricks.timing.inputs import Arguments, InputPool, WeightPool, copied, key_of

CPU = torch.device("cpu")
CACHE_BYTES = 1_000_000
WEIGHT_BYTES = 16 * 16 * 4


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "cache_bytes", lambda device: CACHE_BYTES)


def of(brick: Brick, *, training: bool = False, limit_bytes: int | None = None) -> Arguments:
    return Arguments(brick, InputPool([brick], CPU, limit_bytes), training=training)


class TestArguments:
    def test_weights_take_turns(self) -> None:
        arguments = of(product(context_bytes=4 * WEIGHT_BYTES))
        places = [arguments.weights()[1].data_ptr() for _ in range(12)]
        assert len(set(places)) == 4
        assert places[-4:] == places[-8:-4]

    def test_weights_with_values_are_not_pooled_and_written_ones_are_copies(self) -> None:
        indices = an_input(4, kind="buffer", dtype="int64", sample={"low": 2, "high": 2})
        arguments = of(a_brick([indices], [a_layer("abs.default", [value(0)], 1)], [1], context_bytes=10**6))
        first, second = (arguments.weights()[0] for _ in range(2))
        assert first.tolist() == [2, 2, 2, 2]
        assert first is second
        written = of(a_brick([an_input(16, 16, kind="buffer")], [a_layer("zero_.default", [value(0)], 1)], [1],
                             written=[0]))
        written.weights()[0].zero_()
        assert written.weights()[0].count_nonzero() == 256

    def test_activations_are_written_again_for_each_call_and_constants_are_not(self) -> None:
        inputs = [an_input(4, kind="constant"), an_input(4)]
        arguments = of(a_brick(inputs, [a_layer("add_.Tensor", [value(1), value(0)], 2)], [2], written=[1]))
        first = arguments.others()
        assert set(first[1].tolist()) <= {-1.0, 1.0}
        first[1].fill_(7)
        second = arguments.others()
        assert first[0] is second[0]
        assert first[1].data_ptr() != second[1].data_ptr()
        assert set(second[1].tolist()) <= {-1.0, 1.0}

    def test_in_training_each_call_has_new_leaves(self) -> None:
        arguments = of(product(mode="train"), training=True)
        tensors = arguments.weights() | arguments.others()
        first, second = arguments.call_with(tensors), arguments.call_with(tensors)
        torch.mm(*first).sum().backward()
        assert all(leaf.is_leaf and leaf.grad is not None for leaf in first)
        assert all(leaf.is_leaf and leaf.requires_grad and leaf.grad is None for leaf in second)
        assert [leaf.data_ptr() for leaf in second] == [tensors[number].data_ptr() for number in (0, 1)]

    def test_in_training_written_inputs_are_clones_of_leaves_and_others_keep_their_identity(self) -> None:
        arguments = of(pointwise("relu_.default", mode="train"), training=True)
        (given,) = arguments.call_with(arguments.others())
        assert given.relu_().grad_fn is not None  # a leaf would raise
        arguments = of(pointwise("relu.default"), training=True)
        others = arguments.others()
        assert arguments.call_with(others)[0] is others[0]  # it requires no gradient
        twice = [an_input(4, grad=True), an_input(4, grad=True, repeated=0)]
        arguments = of(a_brick(twice, [a_layer("mul.Tensor", [value(0), value(1)], 2)], [2], mode="train"),
                       training=True)
        first, second = arguments.call_with(arguments.others())
        assert first is second

    @pytest.mark.parametrize(("shape", "dtype", "written", "shared"), [
        ((24,), "float32", [0], True), ((24,), "float32", [], False), ((25,), "float32", [0], False),
        ((24,), "float64", [0], False), ((4, 6), "float32", [], True),
    ])
    def test_repeated_inputs_share_memory_if_that_has_an_effect(
            self, shape: tuple[int, ...], dtype: str, written: list[int], shared: bool) -> None:
        given = [an_input(4, 6), an_input(*shape, dtype=dtype, repeated=0)]
        others = of(a_brick(given, [a_layer("add_.Tensor", [value(0), 1.0], 2)], [2], written=written)).others()
        assert (others[0].data_ptr() == others[1].data_ptr()) == shared

    def test_strides_and_types_are_the_inputs_own(self) -> None:
        given = an_input(3, 4, stride=(1, 3), dtype="bfloat16")
        (drawn,) = of(a_brick([given], [a_layer("relu.default", [value(0)], 1)], [1])).others().values()
        assert (drawn.stride(), drawn.dtype) == ((1, 3), torch.bfloat16)


@pytest.mark.parametrize(("shape", "stride"), [
    ((3, 4), (4, 1)), ((3, 4), (1, 3)), ((3, 4), (0, 1)), ((3, 4), (8, 2)), ((0, 4), (4, 1)), ((), ()),
])
def test_copies_have_the_same_strides_and_hold_only_their_part(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    tensor = torch.arange(10_000.0).as_strided(shape, stride, 5000)
    copy = copied(tensor)
    assert (copy.shape, copy.stride()) == (tensor.shape, tensor.stride())
    assert torch.equal(copy, tensor)
    assert copy.numel() == 0 or copy.data_ptr() != tensor.data_ptr()
    assert copy.untyped_storage().nbytes() <= 4 * 24


def test_activations_without_memory_are_drawn_for_each_visit_and_take_none_from_weights() -> None:
    brick = product(rows=16, context_bytes=2 * WEIGHT_BYTES)
    pool = InputPool([brick], CPU, 2 * WEIGHT_BYTES)
    keys = [key_of(brick.inputs[0]), "other", "too many"]
    before = [pool.pristine(brick.inputs[0], key) for key in keys]
    assert all(pool.pristine(brick.inputs[0], key) is tensor for key, tensor in zip(keys, before, strict=True))
    pool.end_visit()
    after = [pool.pristine(brick.inputs[0], key) for key in keys]
    assert [first is second for first, second in zip(before, after, strict=True)] == [True, True, False]
    arguments = Arguments(brick, pool, training=False)
    assert len({arguments.weights()[1].data_ptr() for _ in range(4)}) == 2


def pool_of(*bricks: Brick, limit_bytes: int = 10**8) -> WeightPool:
    return WeightPool(bricks, CPU, limit_bytes, torch.Generator().manual_seed(0))


def weight(brick: Brick) -> BrickInput:
    return next(each for each in brick.inputs if each.kind == "weight")


def reader(*shape: int, context_bytes: int = 0, **facts: Any) -> Brick:
    """A brick that reads one weight."""
    return a_brick([an_input(*shape, kind="weight", **facts)], [a_layer("abs.default", [value(0)], 1)], [1],
                   context_bytes=context_bytes)


def num_places(pool: WeightPool, brick: Brick, number: int = 400) -> int:
    return len({pool.next(weight(brick)).data_ptr() for _ in range(number)})


class TestWeightPool:
    @pytest.mark.parametrize(("width", "context_bytes", "cache_bytes", "number"), [
        (16, 0, CACHE_BYTES, 1), (16, WEIGHT_BYTES, CACHE_BYTES, 1), (16, 4 * WEIGHT_BYTES, CACHE_BYTES, 4),
        (16, 10**12, CACHE_BYTES, 2 * CACHE_BYTES // WEIGHT_BYTES), (1000, 10**12, 0, 12),
    ])
    def test_a_buffer_is_as_long_as_the_reuse_distance_or_twice_the_cache(
            self, monkeypatch: pytest.MonkeyPatch, width: int, context_bytes: int, cache_bytes: int, number: int
    ) -> None:
        monkeypatch.setattr(inputs, "cache_bytes", lambda device: cache_bytes)
        brick = product(1, width, context_bytes=context_bytes)
        assert num_places(pool_of(brick), brick, 2 * number) == number

    def test_consecutive_slices_do_not_overlap_and_are_aligned(self) -> None:
        bricks = [reader(*shape, context_bytes=3000) for shape in ((16, 16), (15, 17), (5, 50), (3, 250))]
        pool = pool_of(*bricks)
        taken: list[Tensor] = [pool.next(weight(brick)) for brick in bricks * 30]
        spans = [(each.data_ptr(), each.data_ptr() + each.nbytes) for each in taken]
        assert all(first[1] <= second[0] or second[1] <= first[0] for first, second in itertools.pairwise(spans))
        assert all(span[0] % 64 == spans[0][0] % 64 for span in spans)

    def test_bricks_share_the_buffer_of_their_scale_which_fits_the_largest_model(self) -> None:
        small, large = reader(16, 16, context_bytes=WEIGHT_BYTES), reader(20, 16, context_bytes=8 * WEIGHT_BYTES)
        pool = pool_of(small, large)
        assert len({pool.next(weight(brick)).untyped_storage().data_ptr() for brick in (small, large)}) == 1
        assert num_places(pool, small) >= 8

    @pytest.mark.parametrize("other", [
        reader(16, 16, dtype="bfloat16"), reader(16, 400), reader(16, 16, sample={"weight": "positive"}),
    ])
    def test_other_types_scales_and_signs_have_their_own_buffers(self, other: Brick) -> None:
        brick = reader(16, 16)
        pool = pool_of(brick, other)
        first, second = pool.next(weight(brick)), pool.next(weight(other))
        assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
        assert second.dtype == getattr(torch, weight(other).dtype)
        assert "positive" not in str(weight(other).sample) or (second > 0).all()

    @pytest.mark.parametrize("shape", [(64, 16), (64, 9), (30, 500), (30, 64, 3, 3), (900,)])
    def test_values_are_scaled_by_fan_in(self, shape: tuple[int, ...]) -> None:
        drawn = pool_of(brick := reader(*shape, context_bytes=10**6)).next(weight(brick))
        fan_in = math.prod(shape[1:]) if len(shape) > 1 else shape[0]
        assert 0.65 < drawn.std().item() * math.sqrt(fan_in) < 1.5
        assert abs(drawn.mean().item()) < 0.2 * drawn.std().item()

    @pytest.mark.parametrize(("shape", "stride"), [
        ((3, 4), (1, 3)), ((8, 3, 2, 2), (12, 1, 6, 3)), ((0, 4), (4, 1)), ((), ()),
    ])
    def test_shapes_and_strides_are_their_own(self, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
        drawn = pool_of(brick := reader(*shape, stride=stride)).next(weight(brick))
        assert (tuple(drawn.shape), drawn.stride()) == (shape, stride)

    @pytest.mark.parametrize(("widths", "limit_bytes", "numbers"), [
        ((16, 128), 2 * 128 * 128 * 4, (64, 1)),  # each has an equal share
        ((128, 16, 40), 128 * 128 * 4 + 2 * 6400, (1, 6, 1)),  # the largest needs more than its share
        ((128, 16), 10_240, (None, 10)),  # the largest finds no room
        ((16,), WEIGHT_BYTES - 1, (None,)),
    ])
    def test_buffers_share_the_limit(self, widths: tuple[int, ...], limit_bytes: int, numbers: tuple[int | None, ...]
                                     ) -> None:
        bricks = [product(1, width, context_bytes=10**6) for width in widths]
        pool = pool_of(*bricks, limit_bytes=limit_bytes)
        for brick, number in zip(bricks, numbers, strict=True):
            if number is None:  # drawn each time
                assert not torch.equal(pool.next(weight(brick)), pool.next(weight(brick)))
            else:
                assert num_places(pool, brick) == number
