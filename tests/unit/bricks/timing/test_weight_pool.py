"""Belts of weights: where each comes from, how long they are, and what they hold."""

import itertools
import math
from typing import Any

import pytest
import torch
from support.hand_made_bricks import a_brick, a_layer, an_input, product, value
from torch import Tensor

from charact.bricks.suite.brick import Brick, BrickInput
from charact.bricks.timing import inputs as weight_pool
from charact.bricks.timing.inputs import WeightPool

CPU = torch.device("cpu")
CACHE_BYTES = 1_000_000
WEIGHT_BYTES = 16 * 16 * 4


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_pool, "cache_bytes", lambda device: CACHE_BYTES)


def belts(*bricks: Brick, limit_bytes: int = 10**8) -> WeightPool:
    return WeightPool(bricks, CPU, limit_bytes, torch.Generator().manual_seed(0))


def weight(brick: Brick) -> BrickInput:
    return next(each for each in brick.inputs if each.kind == "weight")


def reader(*shape: int, context_bytes: int = 0, **of: Any) -> Brick:
    """A brick that reads one weight."""
    return a_brick([an_input(*shape, kind="weight", **of)], [a_layer("abs.default", [value(0)], 1)], [1],
                   context_bytes=context_bytes)


def places(of: WeightPool, brick: Brick, number: int) -> list[int]:
    return [of.next(weight(brick)).data_ptr() for _ in range(number)]


@pytest.mark.parametrize(("context_bytes", "number"), [
    (0, 1), (WEIGHT_BYTES, 1), (4 * WEIGHT_BYTES, 4), (10**12, 2 * CACHE_BYTES // WEIGHT_BYTES),
])
def test_a_belt_is_as_long_as_the_model_or_as_a_cache_can_tell(context_bytes: int, number: int) -> None:
    brick = product(context_bytes=context_bytes)
    taken = places(belts(brick), brick, 4000)
    assert len(set(taken)) == number
    assert all(here != there for here, there in itertools.pairwise(taken)) or number == 1


def test_without_a_known_cache_a_belt_still_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_pool, "cache_bytes", lambda device: 0)
    brick = product(1, 1000, context_bytes=10**12)  # 4 MB
    assert len(set(places(belts(brick), brick, 40))) == 12


def test_no_two_that_follow_have_elements_in_common() -> None:
    bricks = [reader(*shape, context_bytes=3000) for shape in ((16, 16), (15, 17), (5, 50), (3, 250))]
    of = belts(*bricks)
    kept: list[Tensor] = [of.next(weight(brick)) for brick in bricks * 30]
    spans = [(each.data_ptr(), each.data_ptr() + each.nbytes) for each in kept]
    assert all(first[1] <= second[0] or second[1] <= first[0] for first, second in itertools.pairwise(spans))
    assert all(span[0] % 64 == spans[0][0] % 64 for span in spans)


def test_bricks_share_the_belt_of_their_scale_and_it_is_that_of_the_largest_model() -> None:
    small, large = reader(16, 16, context_bytes=WEIGHT_BYTES), reader(20, 16, context_bytes=8 * WEIGHT_BYTES)
    of = belts(small, large)
    storages = {of.next(weight(brick)).untyped_storage().data_ptr() for brick in (small, large)}
    assert len(storages) == 1
    assert len(set(places(of, small, 100))) >= 8


@pytest.mark.parametrize("other", [
    reader(16, 16, dtype="bfloat16"), reader(16, 400), reader(16, 16, sample={"weight": "positive"}),
])
def test_other_precisions_scales_and_signs_have_belts_of_their_own(other: Brick) -> None:
    brick = reader(16, 16)
    of = belts(brick, other)
    first, second = of.next(weight(brick)), of.next(weight(other))
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    assert second.dtype == getattr(torch, weight(other).type.dtype)


@pytest.mark.parametrize("shape", [(64, 16), (64, 9), (30, 500), (30, 64, 3, 3), (900,)])
def test_values_are_normal_and_so_large_that_a_result_is_about_as_large_as_its_input(shape: tuple[int, ...]) -> None:
    drawn = belts(brick := reader(*shape, context_bytes=10**6)).next(weight(brick))
    fan_in = math.prod(shape[1:]) if len(shape) > 1 else shape[0]
    assert 0.65 < drawn.std().item() * math.sqrt(fan_in) < 1.5
    assert abs(drawn.mean().item()) < 0.2 * drawn.std().item()


def test_positive_ones_are() -> None:
    drawn = belts(brick := reader(64, sample={"weight": "positive"})).next(weight(brick))
    assert (drawn > 0).all()


@pytest.mark.parametrize(("shape", "stride"), [
    ((3, 4), (1, 3)), ((8, 3, 2, 2), (12, 1, 6, 3)), ((0, 4), (4, 1)), ((), ()),
])
def test_shapes_and_strides_are_their_own(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    drawn = belts(brick := reader(*shape, stride=stride)).next(weight(brick))
    assert (tuple(drawn.shape), drawn.stride()) == (shape, stride)


class TestWithoutMemory:
    def test_what_has_no_room_is_drawn_anew(self) -> None:
        brick = product(context_bytes=4 * WEIGHT_BYTES)
        of = belts(brick, limit_bytes=WEIGHT_BYTES - 1)
        first, second = (of.next(weight(brick)) for _ in range(2))
        assert not torch.equal(first, second)

    def test_belts_share_what_there_is(self) -> None:
        one, other = (product(1, width, context_bytes=10**6) for width in (16, 128))
        of = belts(one, other, limit_bytes=2 * 128 * 128 * 4)
        assert len(set(places(of, one, 400))) == 64
        assert len(set(places(of, other, 400))) == 1

    def test_those_that_need_more_than_a_share_get_it_and_the_others_what_is_left(self) -> None:
        large, *small = (product(1, width, context_bytes=10**6) for width in (128, 16, 40))
        of = belts(large, *small, limit_bytes=128 * 128 * 4 + 2 * 6400)
        assert len(set(places(of, large, 100))) == 1
        assert [len(set(places(of, brick, 100))) for brick in small] == [6, 1]

    def test_one_that_finds_no_room_leaves_it_to_the_others(self) -> None:
        large, small = (product(1, width, context_bytes=10**6) for width in (128, 16))
        of = belts(large, small, limit_bytes=10_240)
        assert not torch.equal(of.next(weight(large)), of.next(weight(large)))
        assert len(set(places(of, small, 100))) == 10
