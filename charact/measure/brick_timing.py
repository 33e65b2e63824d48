"""Timing a brick as it runs in a model: with weights that are as far away as there, and activations that are not.

How far away weights are is a matter of the model's size. Rounds over all bricks, and weights that take turns, let a
brick find the caches as a model would leave them that does not fit; one that fits is shown its weights just before.
"""

from typing import Protocol

import torch

from charact.bricks.brick import Brick
from charact.bricks.program import BrickFunction
from charact.measure.brick_clock import HostClock, Times
from charact.measure.brick_inputs import Arguments, InputPool, Tensors
from charact.measure.op_timing import cache_bytes

METHODS = ("contextual", "paper")
"""In the context of a model; or warm, back to back, as in the paper."""

CACHE_FRAC = 0.5
"""Share of the last cache that a model's weights may take to stay there beside its activations."""


class Work(Protocol):
    """What is timed of a brick, again and again."""

    def in_context(self) -> list[dict[str, Times]]:
        """Times by phase of a visit's calls: the first after other bricks, and one right behind it."""

    def warm(self) -> dict[str, Times]:
        """Times by phase of one call right after another one, with the same inputs."""

    def release(self) -> None:
        """Let go of the inputs that warm calls keep."""


def stays_in_cache(brick: Brick, device: torch.device) -> bool:
    """Whether the weights of the brick's model are still in the cache when its next iteration needs them."""
    return brick.context_bytes <= CACHE_FRAC * cache_bytes(device)


class InferenceWork:
    """A brick in inference, called twice at each visit.

    The first call finds the caches as other bricks left them: neither its code nor its weights are there. The second
    finds its code, but not its weights, since it is given others. In a model a layer lies between the two: its like ran
    some layers before, so that its code is near, and its outputs go where nobody has written just now. Where a model's
    weights fit into the last cache an untimed call with the same ones comes before both.

    *Error*: half of each was found to be near the truth on one machine (elementwise layers .6 to 1.6 of what they take,
    convolutions .96 to 1.07); inputs that it reads from an earlier layer than the last are written just before here.
    """

    def __init__(self, brick: Brick, call: BrickFunction, pool: InputPool, clock: HostClock) -> None:
        self._arguments = Arguments(brick, pool, training=False)
        self._call, self._clock = call, clock
        self._cached = stays_in_cache(brick, pool.device)
        self._kept: tuple[Tensors, Tensors] | None = None

    def in_context(self) -> list[dict[str, Times]]:
        """Times of the forward pass."""
        arguments = self._arguments
        weights = arguments.weights()
        if self._cached:
            self._call(arguments.call_with(weights | arguments.others()))
        first = self._clock.time(self._call, arguments.call_with(weights | arguments.others()))
        if not self._cached:
            weights = arguments.weights()
        second = self._clock.time(self._call, arguments.call_with(weights | arguments.others()))
        return [{"forward": first}, {"forward": second}]

    def warm(self) -> dict[str, Times]:
        """Time of the forward pass; an untimed one comes before the first."""
        weights, others = self._kept or (self._arguments.weights(), self._arguments.others())
        if self._kept is None:
            self._call(self._arguments.call_with(weights | others))
        others = self._arguments.restored(others)
        self._kept = weights, others
        return {"forward": self._clock.time(self._call, self._arguments.call_with(weights | others))}

    def release(self) -> None:
        """Let go of the inputs that warm calls keep."""
        self._kept = None
