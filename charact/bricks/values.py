"""What tensors hold, told in a few numbers: enough to draw others on which operators take the same time.

A sketch is one of
    {"negative": .5, "zero": 0, "below": 16}
                                    shares in eighths, and the power of 16 that no finite value's size exceeds; with
                                    {"infinite": {"-inf": .5}}, also those shares; of pictures that are pooled with
                                    {"alike": {"channel": 1, "neighbours": .25}}, how alike a channel's values are
    {"constant": x}                 the same everywhere: 0, or a power of 16; {"float": "-inf"} where it is not finite
    {"weight": "normal"}            never the values: normal ones, small enough to keep what passes through in size
    {"weight": "positive"}          likewise, from .5 to 1.5: scales and variances
    {"whole": base64}               integers and truth values, as they are (zlib), since they may be indices
    {"low": a, "high": b}           likewise of large tensors and of weights: uniform, both ends included

It is as coarse as operators allow: what a layer gives and what another reads should look no more alike than what
others give and read, or their order could be guessed.
"""

import base64
import math
import zlib
from typing import Any

import torch
from torch import Tensor

from charact.bricks.model import PRIVATE_KINDS, Json, TensorType

NUM_LEVELS = 64
"""Different values that are drawn."""
LARGEST_WHOLE_BYTES = 64 * 1024
"""Integer tensors up to this size are kept as they are."""
_PICTURE_AXES = 4
_MOST_CHANNELS, _MOST_ROWS = 64, 32
"""Of a picture, those that are looked at for how alike they are."""
_LARGEST_SAMPLE = 65_536
"""Elements that are looked at; of more, evenly spaced ones."""
_BASE = 16.0
_SMALLEST, _LARGEST = -29, 31
"""Exponents of the base whose powers, and values some hundred times smaller, float32 has."""
_SPREAD = 256.0
"""Times that the largest value drawn exceeds the smallest in size."""
_SHARES = 8
_LIKENESSES = 4


def sketch(tensor: Tensor, kind: str, *, pooled: bool = False) -> Json:
    """How a tensor is to be drawn.

    Args:
        tensor: any dense one.
        kind: of a leaf, one of `LEAF_KINDS`, else `activation`. Values of weights, buffers and constants are not told,
            but for the range of integers, which may be indices.
        pooled: whether pooling reads it, which takes the longer the less alike neighbours are.
    """
    tensor = tensor.detach()
    if not tensor.is_floating_point() and not tensor.is_complex():
        return _sketch_of_integers(tensor, whole=kind not in PRIVATE_KINDS)
    if tensor.is_complex():
        return {"weight": "normal"}
    if tensor.numel() == 0:
        return {"constant": 0.0}
    values = tensor.reshape(-1)
    values = values[:: -(-values.numel() // _LARGEST_SAMPLE)].to("cpu", torch.float64)
    finite = values[values.isfinite()]
    if kind in PRIVATE_KINDS:
        found: dict[str, Json] = {"weight": "positive" if finite.numel() and bool((finite > 0).all()) else "normal"}
    elif values.eq(values[0]).all():
        return {"constant": _number(float(values[0]))}
    else:
        found = _sizes(finite)
        if pooled and tensor.dim() == _PICTURE_AXES and finite.numel() == values.numel():
            found |= _likeness(tensor)
    found_infinite = {name: values.eq(float(name)) for name in ("-inf", "inf")}
    infinite = {name: max(_share(there), 1 / _SHARES) for name, there in found_infinite.items() if there.any()}
    return found | ({"infinite": infinite} if infinite else {})


def draw(type: TensorType, sketch: Json, device: torch.device | str, generator: torch.Generator) -> Tensor:
    """A tensor of a type with values after a sketch, strides included; the generator is one of the CPU."""
    dtype: torch.dtype = getattr(torch, type.dtype)
    size = storage_elements(type)
    if "whole" in sketch:
        storage = torch.zeros(size, dtype=dtype)
        storage[_places(type)] = _whole(sketch["whole"], dtype)
    elif "low" in sketch:
        storage = torch.randint(sketch["low"], sketch["high"] + 1, (size,), generator=generator, dtype=torch.int64)
    elif "constant" in sketch:
        storage = torch.full((size,), _float(sketch["constant"]))
    elif "alike" in sketch and 0 not in type.stride:
        storage = torch.zeros(size)
        storage.as_strided(type.shape, type.stride).copy_(_picture(type, sketch, generator))
    else:
        storage = _floats(type, sketch, size, generator)
    return storage.to(device, dtype).as_strided(type.shape, type.stride)


def storage_elements(type: TensorType) -> int:
    """Elements from the first to the last that a tensor of the type reaches in its storage."""
    if 0 in type.shape:
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(type.shape, type.stride, strict=True))


def _floats(type: TensorType, sketch: Json, size: int, generator: torch.Generator) -> Tensor:
    dtype = torch.complex64 if type.dtype.startswith("complex") else torch.float32
    if "below" in sketch:
        storage = _levels(sketch)[torch.randint(0, NUM_LEVELS, (size,), generator=generator)]
    elif sketch["weight"] == "positive":
        storage = torch.rand(size, generator=generator) + 0.5
    else:
        fan_in = math.prod(type.shape[1:]) if len(type.shape) > 1 else math.prod(type.shape)
        storage = torch.randn(size, generator=generator, dtype=dtype) / math.sqrt(max(fan_in, 1))
    for name, share in sketch.get("infinite", {}).items():
        storage[torch.rand(size, generator=generator) < share] = float(name)
    return storage


def _likeness(tensor: Tensor) -> dict[str, Json]:
    """How alike the values of a channel are, and those of neighbouring columns within it: correlations of ranks.

    Pooling takes the less time the more alike values are, since it guesses better which of them is the largest.
    """
    some = tensor[0, :: -(-tensor.shape[1] // _MOST_CHANNELS), :_MOST_ROWS, :_MOST_ROWS].to("cpu", torch.float32)
    flat = some.reshape(-1).contiguous()
    ordered = flat.sort().values
    ranks = (torch.searchsorted(ordered, flat) + torch.searchsorted(ordered, flat, right=True)).double()
    ranks = ranks.reshape(some.shape)
    within = ranks - ranks.mean((1, 2), keepdim=True)
    spread, rest = ranks.var(unbiased=False), within.square().mean()
    if spread == 0 or some.shape[2] < 2:
        return {}
    beside = (within[..., 1:] * within[..., :-1]).mean() / rest if rest > 0 else torch.zeros(())
    return {"alike": {"channel": _coarse(float(1 - rest / spread)), "neighbours": _coarse(float(beside))}}


def _coarse(likeness: float) -> float:
    return round(likeness * _LIKENESSES) / _LIKENESSES


def _picture(type: TensorType, sketch: Json, generator: torch.Generator) -> Tensor:
    """Values of the levels that are as alike as the sketch says: normal ones that are, put in their places."""
    alike = sketch["alike"]
    beside = max(-0.5, min(0.5, alike["neighbours"]))
    # A sum of normal values and a share of their neighbours' has just this correlation.
    share = (1 - math.sqrt(1 - 4 * beside**2)) / (2 * beside) if beside else 0.0
    within = torch.randn(type.shape, generator=generator)
    for axis in (2, 3):
        within = within + share * within.roll(1, axis)
    within /= 1 + share**2
    channel = max(0.0, min(1.0, alike["channel"]))
    of_channel = torch.randn((*type.shape[:2], 1, 1), generator=generator)
    normal = math.sqrt(channel) * of_channel + math.sqrt(1 - channel) * within
    return _levels(sketch)[torch.special.ndtr(normal).mul_(NUM_LEVELS).long().clamp_(0, NUM_LEVELS - 1)]


def _levels(sketch: Json) -> Tensor:
    """What is drawn from, ascending: sizes spread evenly in their logarithm, in the shares that the sketch tells."""
    num_negative, num_zero = round(sketch["negative"] * NUM_LEVELS), round(sketch["zero"] * NUM_LEVELS)
    num_positive = NUM_LEVELS - num_negative - num_zero
    negative, positive = (sketch["below"] * _SPREAD ** -((torch.arange(number) + 0.5) / max(number, 1))
                          for number in (num_negative, num_positive))
    return torch.cat([-negative, torch.zeros(num_zero), positive.flip(0)])


def _sketch_of_integers(tensor: Tensor, *, whole: bool) -> Json:
    if not tensor.numel():
        return {"low": 0, "high": 0}
    if whole and tensor.numel() * tensor.element_size() <= LARGEST_WHOLE_BYTES:
        raw = tensor.cpu().numpy().tobytes()
        return {"whole": base64.b64encode(zlib.compress(raw, 9)).decode()}
    values = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
    return {"low": int(values.min()), "high": int(values.max())}


def _whole(text: str, dtype: torch.dtype) -> Tensor:
    raw = bytearray(zlib.decompress(base64.b64decode(text)))
    return torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)


def _places(type: TensorType) -> Tensor:
    """Where in the storage each element stands, in the order of the shape."""
    places = torch.zeros(type.shape, dtype=torch.int64)
    for axis, (length, stride) in enumerate(zip(type.shape, type.stride, strict=True)):
        places += (torch.arange(length) * stride).reshape(-1, *[1] * (len(type.shape) - axis - 1))
    return places.reshape(-1)


def _sizes(values: Tensor) -> dict[str, Json]:
    """Signs and sizes of finite values."""
    if not values.numel():
        return {"negative": 0.0, "zero": 1.0, "below": 1.0}
    negative = _share(values < 0)
    zero = min(_share(values == 0), 1 - negative)
    return {"negative": negative, "zero": zero, "below": _power(float(values.abs().max()))}


def _share(there: Tensor) -> float:
    return round(float(there.double().mean()) * _SHARES) / _SHARES


def _power(size: float) -> float:
    """The least power of the base that is no smaller; of 0 the least that is drawn."""
    exponent = math.ceil(round(math.log(size, _BASE), 9)) if size > 0 else _SMALLEST
    return _BASE ** min(max(exponent, _SMALLEST), _LARGEST)


def _number(value: float) -> Json:
    if not math.isfinite(value):
        return {"float": str(value)}
    return math.copysign(_power(abs(value)), value) if value else 0.0


def _float(number: Any) -> float:
    return float(number["float"] if isinstance(number, dict) else number)
