"""What tensors hold, told in a few numbers: enough to draw others on which operators take the same time.

A sketch is one of
    {"quantiles": [...]}            drawn from at random; with {"infinite": {"-inf": .5}}, also those shares
    with {"alike": {"channel": .9, "neighbours": .3}}, how alike the values of a picture's channel are
    {"constant": x}                 the same everywhere; {"float": "-inf"} in x's place where it is not finite
    {"weight": "normal"}            never the values: normal ones, small enough to keep what passes through in size
    {"weight": "positive"}          likewise, from .5 to 1.5: scales and variances
    {"whole": base64}               integers and truth values, as they are (zlib), since they may be indices
    {"low": a, "high": b}           likewise of large tensors and of weights: uniform, both ends included

What a suite tells of activations is such a sketch, mixed of all places of a model at which the brick stands, and
blurred: what one layer makes of its values is then not recognized in what another reads.
"""

import base64
import math
import zlib
from collections.abc import Sequence
from random import Random
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from charact.bricks.captured_graph import PRIVATE_KINDS, Json, TensorType
from charact.bricks.suite.brick_file import LARGEST_WHOLE_BYTES

NUM_QUANTILES = 64
NUM_BLURRED = 16
"""Quantiles that are left of a blurred sketch."""
_LEAST_SCALE, _LEAST_SHARE = 0.5, 0.9
"""What blurred values are multiplied by at the least: all of them, and each."""
_MOST_LIKENESS_OFF = 0.05
_PICTURE_AXES = 4
_MOST_CHANNELS, _MOST_ROWS = 64, 32
"""Of a picture, those that are looked at for how alike they are."""
_LARGEST_SAMPLE = 65_536
"""Elements that quantiles are taken of; of more, evenly spaced ones."""
_MOST_DRAWN, _LEAST_CHANNELS = 1 << 16, 16
"""Elements that are drawn; of more, these again and again, which are more than a processor learns to predict. So many
channels of pictures are drawn, whatever their size."""


def sketch(tensor: Tensor, kind: str) -> Json:
    """How a tensor is to be drawn.

    Args:
        tensor: any dense one.
        kind: of a leaf, one of `LEAF_KINDS`, else `activation`. Values of weights, buffers and constants are not told,
            but for the range of integers, which may be indices.
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
        return {"constant": _number(values[0])}
    else:
        found = {"quantiles": _quantiles(finite)}
        if tensor.dim() == _PICTURE_AXES and finite.numel() == values.numel():
            found |= _likeness(tensor)
    shares = {name: round(values.eq(float(name)).double().mean().item(), 4) for name in ("-inf", "inf")}
    infinite = {name: share for name, share in shares.items() if share > 0}
    return found | ({"infinite": infinite} if infinite else {})


def mixed(sketches: Sequence[Json]) -> Json:
    """A sketch of the values of several tensors together; the first one's where not all are told by quantiles."""
    first = sketches[0]
    if len(sketches) == 1 or any("quantiles" not in one for one in sketches):
        return first
    values = sorted(value for one in sketches for value in one["quantiles"])
    found: dict[str, Json] = {
        "quantiles": [values[int((number + 0.5) / NUM_QUANTILES * len(values))] for number in range(NUM_QUANTILES)]}
    if all("alike" in one for one in sketches):
        found["alike"] = {name: round(fmean(one["alike"][name] for one in sketches), 2) for name in first["alike"]}
    shares = {name: fmean(one.get("infinite", {}).get(name, 0.0) for one in sketches) for name in ("-inf", "inf")}
    infinite = {name: round(share, 4) for name, share in shares.items() if share > 0}
    return found | ({"infinite": infinite} if infinite else {})


def blurred(sketch: Json, random: Random) -> Json:
    """A sketch with fewer quantiles, at other places and nearer to 0, and with likeness a little off.

    Signs and zeros are kept, and nothing is larger than it was, so that shares stay such and places lie inside.
    """
    if "quantiles" not in sketch:
        return sketch
    values, offset = sketch["quantiles"], random.random()
    scale = random.uniform(_LEAST_SCALE, 1)
    chosen = [values[int((number + offset) / NUM_BLURRED * len(values))] for number in range(NUM_BLURRED)]
    found = sketch | {"quantiles": sorted(
        _rounded(value * scale * random.uniform(_LEAST_SHARE, 1)) for value in chosen)}
    if "alike" in sketch:
        found["alike"] = {
            name: round(value + random.uniform(-_MOST_LIKENESS_OFF, _MOST_LIKENESS_OFF), 2)
            for name, value in sketch["alike"].items()
        }
    return found


def draw(type: TensorType, sketch: Json, device: torch.device | str, generator: torch.Generator) -> Tensor:
    """A tensor of a type with values after a sketch, strides included; the generator is one of the CPU."""
    dtype: torch.dtype = getattr(torch, type.dtype)
    size = storage_elements(type.shape, type.stride)
    if "whole" in sketch:
        storage = torch.zeros(size, dtype=dtype)
        storage[_places(type)] = _whole(sketch["whole"], type.num_bytes, dtype)
    elif "low" in sketch:
        storage = torch.randint(sketch["low"], sketch["high"] + 1, (size,), generator=generator, dtype=torch.int64)
    elif "constant" in sketch:
        storage = torch.full((size,), _float(sketch["constant"]))
    elif "alike" in sketch and 0 not in type.stride:
        storage = torch.zeros(size)
        storage.as_strided(type.shape, type.stride).copy_(_pictures(type.shape, sketch, generator))
    else:
        storage = _again(_floats(type, sketch, min(size, _MOST_DRAWN), generator), size)
    return storage.to(device, dtype).as_strided(type.shape, type.stride)


def storage_elements(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last that a tensor reaches in its storage."""
    if 0 in shape:
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))


def _floats(type: TensorType, sketch: Json, size: int, generator: torch.Generator) -> Tensor:
    dtype = torch.complex64 if type.dtype.startswith("complex") else torch.float32
    if "quantiles" in sketch:
        quantiles = torch.tensor(sketch["quantiles"])
        storage = quantiles[torch.randint(0, len(quantiles), (size,), generator=generator)]
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
    return {"alike": {"channel": round(float(1 - rest / spread), 2), "neighbours": round(float(beside), 2)}}


def _again(values: Tensor, size: int) -> Tensor:
    """The values, along the first axis, repeated up to the size."""
    if len(values) == size:
        return values
    found = values.new_empty((size, *values.shape[1:]))
    for first in range(0, size, len(values)):
        found[first : first + len(values)] = values[: size - first]
    return found


def _pictures(shape: tuple[int, ...], sketch: Json, generator: torch.Generator) -> Tensor:
    """Pictures of the shape, with values from the quantiles."""
    num_planes = shape[0] * shape[1]
    drawn = min(num_planes, max(_LEAST_CHANNELS, -(-_MOST_DRAWN // max(1, shape[2] * shape[3]))))
    return _again(_planes((drawn, *shape[2:]), sketch, generator), num_planes).reshape(shape)


def _planes(shape: tuple[int, ...], sketch: Json, generator: torch.Generator) -> Tensor:
    """Channels whose values are as alike as the sketch says: normal ones that are, put in the quantiles' places."""
    alike = sketch["alike"]
    beside = max(-0.5, min(0.5, alike["neighbours"]))
    # A sum of normal values and a share of their neighbours' has just this correlation.
    share = (1 - math.sqrt(1 - 4 * beside**2)) / (2 * beside) if beside else 0.0
    within = torch.randn(shape, generator=generator)
    for axis in (1, 2):
        within = within + share * within.roll(1, axis)
    within /= 1 + share**2
    channel = max(0.0, min(1.0, alike["channel"]))
    shares = (torch.randperm(shape[0], generator=generator) + 0.5) / shape[0]
    of_channel = torch.special.ndtri(shares).reshape(-1, 1, 1)  # so that few channels, too, have all values
    normal = math.sqrt(channel) * of_channel + math.sqrt(1 - channel) * within
    quantiles = torch.tensor(sketch["quantiles"])
    places = torch.special.ndtr(normal).mul_(len(quantiles)).long().clamp_(0, len(quantiles) - 1)
    return quantiles[places]


def _sketch_of_integers(tensor: Tensor, *, whole: bool) -> Json:
    if not tensor.numel():
        return {"low": 0, "high": 0}
    if whole and tensor.numel() * tensor.element_size() <= LARGEST_WHOLE_BYTES:
        raw = tensor.cpu().numpy().tobytes()
        return {"whole": base64.b64encode(zlib.compress(raw, 9)).decode()}
    values = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
    return {"low": int(values.min()), "high": int(values.max())}


def _whole(text: str, num_bytes: int, dtype: torch.dtype) -> Tensor:
    unpacked = zlib.decompressobj().decompress(base64.b64decode(text), num_bytes + 1)
    if len(unpacked) != num_bytes:
        raise ValueError(f"an input's integers take {num_bytes} bytes, and its file holds others")
    raw = bytearray(unpacked)
    return torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)


def _places(type: TensorType) -> Tensor:
    """Where in the storage each element stands, in the order of the shape."""
    places = torch.zeros(type.shape, dtype=torch.int64)
    for axis, (length, stride) in enumerate(zip(type.shape, type.stride, strict=True)):
        places += (torch.arange(length) * stride).reshape(-1, *[1] * (len(type.shape) - axis - 1))
    return places.reshape(-1)


def _quantiles(values: Tensor) -> list[float]:
    if not values.numel():
        return [0.0]
    shares = (torch.arange(NUM_QUANTILES, dtype=values.dtype) + 0.5) / NUM_QUANTILES
    return [_rounded(value) for value in values.quantile(shares).tolist()]


def _number(value: Tensor) -> Any:
    number = float(value)
    return _rounded(number) if math.isfinite(number) else {"float": str(number)}


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")


def _float(number: Any) -> float:
    return float(number["float"] if isinstance(number, dict) else number)
