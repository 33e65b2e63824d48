"""Sketches of tensors and what is drawn after them."""

import base64
import json
import math
import zlib
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from charact.bricks.suite.brick import LARGEST_WHOLE_BYTES
from charact.bricks.suite.captured_graph import Json, TensorType
from charact.bricks.value_distributions import (
    NUM_PERTURBED,
    NUM_QUANTILES,
    distribution_of,
    draw,
    mixture,
    perturbed,
)


def type_of(tensor: Tensor) -> TensorType:
    return TensorType(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride())


def drawn(tensor: Tensor, kind: str = "activation") -> Tensor:
    told: Json = json.loads(json.dumps(distribution_of(tensor, kind), allow_nan=False))
    made = draw(type_of(tensor), told, "cpu", torch.Generator().manual_seed(0))
    assert type_of(made) == type_of(tensor)
    return made


def test_an_activation_is_drawn_from_its_quantiles() -> None:
    tensor = torch.linspace(-3, 5, 10_001)
    told = distribution_of(tensor, "activation")
    assert len(told["quantiles"]) == NUM_QUANTILES
    assert told["quantiles"][0] == pytest.approx(-3 + 8 / 128, rel=5e-3)
    made = drawn(tensor)
    assert set(made.tolist()) <= set(torch.tensor(told["quantiles"]).tolist())
    assert made.mean().item() == pytest.approx(1, abs=0.1)
    assert made.std().item() == pytest.approx(8 / math.sqrt(12), rel=0.05)


def test_the_share_of_zeros_after_a_relu_is_kept() -> None:
    made = drawn(torch.randn(40_000, generator=torch.Generator().manual_seed(1)).relu())
    assert made.eq(0).double().mean().item() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_values_of_a_channel_and_of_neighbours_stay_alike(memory_format: torch.memory_format) -> None:
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(2, 48, 33, 33, generator=generator)
    columns = noise[..., 1:] + 0.5 * noise[..., :-1]  # correlated by .4
    tensor = columns + 2 * torch.randn(2, 48, 1, 1, generator=generator)
    told = distribution_of(tensor, "activation")
    assert told["alike"]["neighbours"] == pytest.approx(0.4, abs=0.06)
    assert told["alike"]["channel"] == pytest.approx(4 / (4 + 1.25), abs=0.1)
    again = distribution_of(drawn(tensor.to(memory_format=memory_format)), "activation")
    assert again["alike"]["neighbours"] == pytest.approx(0.4, abs=0.1)
    assert again["alike"]["channel"] == pytest.approx(told["alike"]["channel"], abs=0.12)


def test_a_picture_of_noise_is_drawn_as_noise() -> None:
    tensor = torch.randn(1, 48, 32, 32, generator=torch.Generator().manual_seed(3))
    told = distribution_of(drawn(tensor), "activation")["alike"]
    assert told["channel"] == pytest.approx(0, abs=0.05)
    assert told["neighbours"] == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("shape", [(8, 64, 56, 56), (8, 3, 300, 300), (1, 100_000, 2, 2), (400_001,), (50, 9_000)])
def test_of_large_tensors_a_part_is_drawn_again_and_again(shape: tuple[int, ...]) -> None:
    told: Json = {"quantiles": [float(number) for number in range(64)], "alike": {"channel": 0.5, "neighbours": 0.2}}
    type = TensorType("float32", shape, torch.empty(shape, device="meta").stride())
    made = draw(type, told if len(shape) == 4 else {"quantiles": told["quantiles"]}, "cpu",
                torch.Generator().manual_seed(0)).reshape(-1)
    plane = math.prod(shape[2:])
    period = min(math.prod(shape[:2]), max(16, -(-(1 << 16) // plane))) * plane if len(shape) == 4 else 1 << 16
    assert torch.equal(made[period:], made[:-period])
    assert not torch.equal(made[period // 2 : period], made[: period - period // 2])
    assert torch.histc(made, 64).div(made.numel()).sub(1 / 64).abs().max() < 0.01


@pytest.mark.parametrize("value", [0.0, 1.0, -1e9, -math.inf])
def test_what_is_the_same_everywhere_stays_so(value: float) -> None:
    tensor = torch.full((3, 4), value)
    assert drawn(tensor).equal(tensor)


@pytest.mark.parametrize("kind", ["activation", "buffer", "constant"])
def test_the_share_of_what_a_mask_hides_is_kept(kind: str) -> None:
    mask = torch.full((200, 200), -math.inf).triu(1)
    made = drawn(mask, kind)
    assert made.isneginf().double().mean().item() == pytest.approx(0.4975, abs=0.01)
    assert not made.isnan().any()


def test_what_stands_at_several_places_reads_what_all_of_them_read() -> None:
    masked = torch.full((4096,), 1e-40)
    masked[::4] = 1.0
    told = mixture([distribution_of(torch.linspace(2, 3, 4096), "activation"), distribution_of(masked, "activation")])
    assert len(told["quantiles"]) == NUM_QUANTILES
    made = draw(type_of(masked), told, "cpu", torch.Generator().manual_seed(0))
    shares = [((low <= made) & (made <= high)).double().mean().item() for low, high in ((0, 1e-39), (1, 1), (2, 3))]
    assert shares == pytest.approx([0.375, 0.125, 0.5], abs=0.03)


def test_likeness_and_what_is_infinite_are_those_of_the_mean() -> None:
    hidden = {"quantiles": [0.0, 1.0], "infinite": {"-inf": 0.5}, "alike": {"channel": 0.2, "neighbours": 0.0}}
    shown = {"quantiles": [2.0, 3.0], "alike": {"channel": 0.4, "neighbours": 0.3}}
    told = mixture([hidden, shown])
    assert told["quantiles"] == sorted([0.0, 1.0, 2.0, 3.0] * (NUM_QUANTILES // 4))
    assert told["infinite"] == {"-inf": 0.25}
    assert told["alike"] == {"channel": 0.3, "neighbours": 0.15}
    assert "alike" not in mixture([hidden, {"quantiles": [2.0]}])


@pytest.mark.parametrize("told", [{"constant": 1.5}, {"weight": "normal"}, {"low": 0, "high": 7}, {"quantiles": [1.0]}])
def test_what_cannot_be_mixed_is_that_of_the_first_place(told: Json) -> None:
    assert mixture([told]) == told
    assert mixture([told, {"constant": 0.0}]) == told


@given(values=st.lists(st.floats(-1e6, 1e6).map(lambda value: float(f"{value:.3g}")), min_size=1, max_size=64),
       seed=st.integers(0, 1000))  # fmt: skip
def test_blurred_values_keep_their_signs_and_are_no_larger(values: list[float], seed: int) -> None:
    told = {"quantiles": sorted(values), "infinite": {"-inf": 0.25}, "alike": {"channel": 0.5, "neighbours": -0.1}}
    before = json.dumps(told)
    found = perturbed(told, Random(seed))
    assert json.dumps(told) == before
    assert len(found["quantiles"]) == NUM_PERTURBED
    assert found["quantiles"] == sorted(found["quantiles"])
    assert {math.copysign(1, value) if value else 0 for value in found["quantiles"]} <= {
        math.copysign(1, value) if value else 0 for value in values}
    assert min(0, *values) <= found["quantiles"][0]
    assert found["quantiles"][-1] <= max(0, *values)
    assert found["infinite"] == told["infinite"]
    assert found["alike"]["channel"] == pytest.approx(0.5, abs=0.0501)
    assert found["alike"]["neighbours"] == pytest.approx(-0.1, abs=0.0501)


def test_a_value_is_blurred_each_time_otherwise_and_drawn_from() -> None:
    tensor = torch.randn(2, 8, 16, 16, generator=torch.Generator().manual_seed(4)).relu()
    told, random = distribution_of(tensor, "activation"), Random(0)
    first, second = perturbed(told, random), perturbed(told, random)
    assert first != second
    for each in (first, second):
        made = draw(type_of(tensor), each, "cpu", torch.Generator().manual_seed(0))
        assert made.eq(0).double().mean().item() == pytest.approx(0.5, abs=0.1)
        assert made.max() <= tensor.max()
        assert 0.4 * tensor.std() < made.std() < 1.2 * tensor.std()


@pytest.mark.parametrize("told", [{"constant": 1.5}, {"weight": "normal"}, {"low": 0, "high": 7}, {"whole": "eJw="}])
def test_what_tells_no_values_is_not_blurred(told: Json) -> None:
    assert perturbed(told, Random(0)) == told


@pytest.mark.parametrize("kind", ["weight", "buffer"])
def test_values_of_weights_are_not_told(kind: str) -> None:
    assert distribution_of(torch.randn(64, 3, 7, 7), kind) == {"weight": "normal"}
    assert distribution_of(torch.rand(64) + 1e-3, kind) == {"weight": "positive"}


def test_weights_are_drawn_so_that_what_passes_through_keeps_its_size() -> None:
    weight = drawn(torch.randn(256, 128, 3, 3), "weight")
    assert weight.std().item() == pytest.approx(1 / math.sqrt(128 * 9), rel=0.02)
    scale = drawn(torch.rand(5_000) + 1e-3, "weight")
    assert 0.5 <= scale.min().item() < 0.51
    assert 1.49 < scale.max().item() <= 1.5


@pytest.mark.parametrize("tensor", [
    torch.arange(100).reshape(10, 10), torch.tensor(7), torch.tensor([True, False]),
    torch.empty(0, 3, dtype=torch.int64), torch.arange(8).as_strided((1, 1), (1, 8)),
    torch.randint(0, 9, (4, 5), dtype=torch.int32).t(), torch.arange(3).expand(4, 3), torch.arange(8).unfold(0, 4, 2),
    torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4)[:, ::2],
], ids=lambda tensor: f"{tuple(tensor.shape)}-{tensor.dtype}")
def test_small_integers_are_kept_as_they_are(tensor: Tensor) -> None:
    assert drawn(tensor).equal(tensor)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_large_integers_stay_within_their_range(dtype: torch.dtype) -> None:
    high = 2 if dtype == torch.bool else 1000
    tensor = torch.randint(0, high, (LARGEST_WHOLE_BYTES + 1,)).to(dtype)
    assert distribution_of(tensor, "input") == {"low": 0, "high": high - 1}
    made = drawn(tensor)
    assert (int(made.min()), int(made.max())) == (0, high - 1)


def test_numbers_that_are_none_are_not_drawn() -> None:
    assert not drawn(torch.tensor([math.nan, 1.0, 2.0])).isnan().any()
    assert drawn(torch.empty(0, 4)).numel() == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_types_other_than_float32_are_drawn(dtype: torch.dtype) -> None:
    made = drawn(torch.randn(32, 8).to(dtype))
    assert made.isfinite().all()
    assert made.abs().max() > 0


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), max_size=4))
def test_any_strides_are_made(axes: list[tuple[int, int]]) -> None:
    type = TensorType("float32", tuple(length for length, _ in axes), tuple(stride for _, stride in axes))
    made = draw(type, {"constant": 2.5}, "cpu", torch.Generator())
    assert (made.shape, made.stride()) == (type.shape, type.stride)
    assert made.eq(2.5).all()
    assert made.untyped_storage().nbytes() == 4 * type.storage_elements


def test_the_same_seed_draws_the_same() -> None:
    tensor = torch.randn(50)
    assert drawn(tensor).equal(drawn(tensor))


def test_integers_that_unpack_to_more_than_their_tensor_are_refused() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(2**26), 9)).decode()
    for text in (bomb, base64.b64encode(zlib.compress(bytes(8))).decode()):
        with pytest.raises(ValueError, match="take 16 bytes, but its file holds a different number"):
            draw(TensorType("int64", (2,), (1,)), {"whole": text}, "cpu", torch.Generator())
