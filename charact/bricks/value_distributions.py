"""Value distributions: compact descriptions of tensor contents, from which tensors of equal run time can be drawn.

A value distribution is one of
    {"quantiles": [...]}            sampled at random; {"infinite": {"-inf": .5}} adds shares of infinities;
    with {"alike": {"channel": .9, "neighbours": .3}}, the spatial correlation of an image's values
    {"constant": x}                 one value everywhere; {"float": "-inf"} if x is not finite
    {"weight": "normal"}            no values stored: normal, scaled by fan-in so that activations keep their scale
    {"weight": "positive"}          no values stored: uniform from .5 to 1.5, for scales and variances
    {"whole": base64}               integers and booleans, exact (zlib), since they may be indices
    {"low": a, "high": b}           large integer tensors and integer weights: uniform, both ends included

A suite holds such a distribution for each activation, averaged over all places of a model where the brick occurs. Those
of models that do not read images are perturbed, so that the output of one brick is harder to match to the input of
another. In image models, the shares of zeros and of negative values reveal as much, so perturbation would not help.
"""

import base64
import math
import zlib
from collections.abc import Sequence
from random import Random
from statistics import fmean

import torch
from torch import Tensor

from charact.bricks.suite.brick import LARGEST_WHOLE_BYTES
from charact.bricks.suite.captured_graph import PRIVATE_KINDS, Json, TensorType

NUM_QUANTILES = 64
NUM_PERTURBED = 16
"""Quantiles of a perturbed distribution."""
_MIN_SCALE, _MIN_FACTOR = 0.5, 0.9
"""Smallest perturbation factors: the common one of all quantiles, and that of each quantile."""
_MAX_CORRELATION_CHANGE = 0.05
_IMAGE_AXES = 4
_MAX_CHANNELS, _MAX_ROWS = 64, 32
"""Channels and rows of an image from which the spatial correlation is estimated."""
_MAX_SAMPLE = 65_536
"""Maximum number of elements from which quantiles are computed; larger tensors are subsampled evenly."""
_MAX_DRAWN, _MIN_CHANNELS = 1 << 16, 16
"""Maximum number of elements drawn, and minimum number of image channels; larger tensors repeat them. The maximum
exceeds what a branch predictor can learn."""


def distribution_of(tensor: Tensor, kind: str) -> Json:
    """Return the value distribution of a dense tensor.

    Args:
        tensor: a dense tensor.
        kind: one of `LEAF_KINDS` for a leaf, else `activation`. For weights, buffers and constants, the result holds
            no values except the range of integers, which may be indices.
    """
    tensor = tensor.detach()
    if not tensor.is_floating_point() and not tensor.is_complex():
        if not tensor.numel():
            return {"low": 0, "high": 0}
        if kind not in PRIVATE_KINDS and tensor.numel() * tensor.element_size() <= LARGEST_WHOLE_BYTES:
            return {"whole": base64.b64encode(zlib.compress(tensor.cpu().numpy().tobytes(), 9)).decode()}
        integers = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
        return {"low": int(integers.min()), "high": int(integers.max())}
    if tensor.is_complex():
        return {"weight": "normal"}
    if tensor.numel() == 0:
        return {"constant": 0.0}
    values = tensor.reshape(-1)
    values = values[:: -(-values.numel() // _MAX_SAMPLE)].to("cpu", torch.float64)
    finite = values[values.isfinite()]
    if kind in PRIVATE_KINDS:
        found: dict[str, Json] = {"weight": "positive" if finite.numel() and bool((finite > 0).all()) else "normal"}
    elif values.eq(values[0]).all():
        first = float(values[0])
        return {"constant": _rounded(first) if math.isfinite(first) else {"float": str(first)}}
    else:
        shares = (torch.arange(NUM_QUANTILES, dtype=values.dtype) + 0.5) / NUM_QUANTILES
        quantiles = finite.quantile(shares).tolist() if finite.numel() else [0.0]
        found = {"quantiles": [_rounded(value) for value in quantiles]}
        if tensor.dim() == _IMAGE_AXES and finite.numel() == values.numel():
            found |= _spatial_correlation(tensor)
    return found | _infinite({name: values.eq(float(name)).double().mean().item() for name in ("-inf", "inf")})


def _infinite(shares: dict[str, float]) -> dict[str, Json]:
    infinite = {name: rounded for name, share in shares.items() if (rounded := round(share, 4)) > 0}
    return {"infinite": infinite} if infinite else {}


def mixture(distributions: Sequence[Json]) -> Json:
    """Return the joint distribution of several tensors, or the first one if not all are quantiles."""
    first = distributions[0]
    if len(distributions) == 1 or any("quantiles" not in each for each in distributions):
        return first
    values = sorted(value for each in distributions for value in each["quantiles"])
    found: dict[str, Json] = {
        "quantiles": [values[int((number + 0.5) / NUM_QUANTILES * len(values))] for number in range(NUM_QUANTILES)]}
    if all("alike" in each for each in distributions):
        found["alike"] = {name: round(fmean(each["alike"][name] for each in distributions), 2)
                          for name in first["alike"]}
    return found | _infinite({name: fmean(each.get("infinite", {}).get(name, 0.0) for each in distributions)
                              for name in ("-inf", "inf")})


def perturbed(distribution: Json, random: Random) -> Json:
    """Return the distribution with fewer, shifted and scaled-down quantiles and a slightly changed correlation.

    Signs and zeros are kept and magnitudes do not grow, so that probabilities and coordinates stay in range.
    """
    if "quantiles" not in distribution:
        return distribution
    values, offset = distribution["quantiles"], random.random()
    scale = random.uniform(_MIN_SCALE, 1)
    chosen = [values[int((number + offset) / NUM_PERTURBED * len(values))] for number in range(NUM_PERTURBED)]
    found = distribution | {"quantiles": sorted(
        _rounded(value * scale * random.uniform(_MIN_FACTOR, 1)) for value in chosen)}
    if "alike" in distribution:
        found["alike"] = {
            name: round(value + random.uniform(-_MAX_CORRELATION_CHANGE, _MAX_CORRELATION_CHANGE), 2)
            for name, value in distribution["alike"].items()
        }
    return found


def draw(type: TensorType, distribution: Json, device: torch.device | str, generator: torch.Generator) -> Tensor:
    """Draw a tensor of a type (with its strides) from a distribution; the generator is a CPU generator."""
    dtype: torch.dtype = getattr(torch, type.dtype)
    size = type.storage_elements
    if "whole" in distribution:
        unpacked = zlib.decompressobj().decompress(base64.b64decode(distribution["whole"]), type.num_bytes + 1)
        if len(unpacked) != type.num_bytes:
            raise ValueError(f"an input's integers take {type.num_bytes} bytes, but its file holds a different number")
        storage = torch.zeros(size, dtype=dtype)
        if unpacked:
            places = torch.arange(size).as_strided(type.shape, type.stride).reshape(-1)
            storage[places] = torch.frombuffer(bytearray(unpacked), dtype=dtype)
    elif "low" in distribution:
        low, high = distribution["low"], distribution["high"]
        storage = torch.randint(low, high + 1, (size,), generator=generator, dtype=torch.int64)
    elif "constant" in distribution:
        constant = distribution["constant"]
        storage = torch.full((size,), float(constant["float"] if isinstance(constant, dict) else constant))
    elif "alike" in distribution and 0 not in type.stride:
        storage = torch.zeros(size)
        num_planes, num_pixels = type.shape[0] * type.shape[1], type.shape[2] * type.shape[3]
        drawn = min(num_planes, max(_MIN_CHANNELS, -(-_MAX_DRAWN // max(1, num_pixels))))
        planes = _repeat_to(_planes((drawn, *type.shape[2:]), distribution, generator), num_planes)
        storage.as_strided(type.shape, type.stride).copy_(planes.reshape(type.shape))
    else:
        storage = _repeat_to(_floats(type, distribution, min(size, _MAX_DRAWN), generator), size)
    return storage.to(device, dtype).as_strided(type.shape, type.stride)


def _floats(type: TensorType, distribution: Json, size: int, generator: torch.Generator) -> Tensor:
    dtype = torch.complex64 if type.dtype.startswith("complex") else torch.float32
    if "quantiles" in distribution:
        quantiles = torch.tensor(distribution["quantiles"])
        storage = quantiles[torch.randint(0, len(quantiles), (size,), generator=generator)]
    elif distribution["weight"] == "positive":
        storage = torch.rand(size, generator=generator) + 0.5
    else:
        fan_in = math.prod(type.shape[1:]) if len(type.shape) > 1 else math.prod(type.shape)
        storage = torch.randn(size, generator=generator, dtype=dtype) / math.sqrt(max(fan_in, 1))
    for name, share in distribution.get("infinite", {}).items():
        storage[torch.rand(size, generator=generator) < share] = float(name)
    return storage


def _spatial_correlation(tensor: Tensor) -> dict[str, Json]:
    """Return rank correlations of an image's values: within a channel, and of neighbouring columns.

    Max pooling is faster on correlated values, because its branches are predicted better.
    """
    some = tensor[0, :: -(-tensor.shape[1] // _MAX_CHANNELS), :_MAX_ROWS, :_MAX_ROWS].to("cpu", torch.float32)
    flat = some.reshape(-1).contiguous()
    ordered = flat.sort().values
    ranks = (torch.searchsorted(ordered, flat) + torch.searchsorted(ordered, flat, right=True)).double()
    ranks = ranks.reshape(some.shape)
    within = ranks - ranks.mean((1, 2), keepdim=True)
    spread, rest = ranks.var(unbiased=False), within.square().mean()
    if spread == 0 or some.shape[2] < 2:
        return {}
    neighbours = (within[..., 1:] * within[..., :-1]).mean() / rest if rest > 0 else torch.zeros(())
    return {"alike": {"channel": round(float(1 - rest / spread), 2), "neighbours": round(float(neighbours), 2)}}


def _repeat_to(values: Tensor, size: int) -> Tensor:
    """Return the values repeated along the first axis up to `size`."""
    if len(values) == size:
        return values
    found = values.new_empty((size, *values.shape[1:]))
    for first in range(0, size, len(values)):
        found[first : first + len(values)] = values[: size - first]
    return found


def _planes(shape: tuple[int, ...], distribution: Json, generator: torch.Generator) -> Tensor:
    """Draw channels with the given spatial correlation: correlated normal values, mapped to the quantiles."""
    alike = distribution["alike"]
    neighbours = max(-0.5, min(0.5, alike["neighbours"]))
    # The sum of a normal value and this share of its neighbour has the wanted correlation.
    share = (1 - math.sqrt(1 - 4 * neighbours**2)) / (2 * neighbours) if neighbours else 0.0
    within = torch.randn(shape, generator=generator)
    for axis in (1, 2):
        within = within + share * within.roll(1, axis)
    within /= 1 + share**2
    channel = max(0.0, min(1.0, alike["channel"]))
    shares = (torch.randperm(shape[0], generator=generator) + 0.5) / shape[0]
    of_channel = torch.special.ndtri(shares).reshape(-1, 1, 1)  # stratified, so that few channels cover the whole range
    normal = math.sqrt(channel) * of_channel + math.sqrt(1 - channel) * within
    quantiles = torch.tensor(distribution["quantiles"])
    places = torch.special.ndtr(normal).mul_(len(quantiles)).long().clamp_(0, len(quantiles) - 1)
    return quantiles[places]


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")
