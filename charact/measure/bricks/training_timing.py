"""Timing a brick in training: its forward pass and its backward pass apart, and updates of parameters."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from charact.bricks.brick import Brick, BrickInput
from charact.bricks.captured_graph import TensorType
from charact.bricks.executable import BrickFunction, optimizer_class
from charact.measure.bricks.inputs import Arguments, InputPool, copied, key_of
from charact.measure.bricks.timing import InContext, warm_up
from charact.measure.microbench.call_timer import HostClock, Times

_NUM_STARTS = 201
_FEWEST_PARAMETERS, _MOST_PARAMETERS = 4, 16
"""That are updated at once: as many as the model could have, but few enough to be ready soon."""
_MOST_BYTES = 48_000_000
"""Of these parameters, where they are larger than the fewest."""


class TrainingWork(InContext):
    """A brick in training: its forward pass under autograd, then its backward pass from random gradients.

    Every call has new leaves, so that gradients are made and not added to. The gradients that it begins with are
    written between the two passes. What starting a backward pass takes is part of its time: `backward_start` tells
    it.

    *Error*: the backward pass follows its forward pass at once, so that what was saved is nearer than in a model.
    """

    def __init__(self, brick: Brick, call: BrickFunction, pool: InputPool, clock: HostClock) -> None:
        super().__init__(brick, call, pool, clock, training=True)
        self._outputs: Sequence[Tensor] = ()

    def timed(self, inputs: list[Tensor]) -> dict[str, Times]:
        """Times of a forward and a backward pass; of the forward pass alone where nothing carries a gradient."""
        times = {"forward": self._clock.time(self._forward, inputs)}
        carriers = [output for output in self._outputs if output.requires_grad]
        if carriers:
            gradients = [self._gradient_of(output) for output in carriers]
            self._outputs = ()
            roots = [(carriers, gradients)]
            del carriers
            times["backward"] = self._clock.time(_backward, roots)
        self._outputs = ()
        return times

    def _forward(self, inputs: list[Tensor]) -> None:
        self._outputs = self._call(inputs)

    def _gradient_of(self, output: Tensor) -> Tensor:
        """Random numbers, written just now."""
        of = TensorType(str(output.dtype).removeprefix("torch."), tuple(output.shape), output.stride())
        like = BrickInput("activation", of, False, {"weight": "normal"})
        return copied(self._pool.pristine(like, key_of(like)))


def _backward(roots: list[tuple[list[Tensor], list[Tensor]]]) -> None:
    """Take the backward pass and let go of its graph."""
    torch.autograd.backward(*roots.pop())


class GradientSumWork:
    """A sum of two gradients, which were made just before."""

    def __init__(self, brick: Brick, call: BrickFunction, pool: InputPool, clock: HostClock) -> None:
        self._arguments = Arguments(brick, pool, training=False)
        self._call, self._clock = call, clock

    def in_context(self) -> list[dict[str, Times]]:
        """The same as when warm: its inputs are, wherever they are written."""
        warm_up(self.warm)
        return [self.warm()]

    def warm(self) -> dict[str, Times]:
        """Time of the sum."""
        with torch.no_grad():
            return {"forward": self._clock.time(self._call, self._arguments.call_with(self._arguments.others()))}

    def release(self) -> None:
        """Nothing is kept."""


class UpdateWork:
    """An optimizer's step for parameters of one type, after the steps that make their state.

    *Error*: what a step takes that updates nothing is taken off, and the rest is shared evenly by the parameters: in a
    model, whose parameters are of several sizes, what they share may be another part.
    """

    def __init__(self, brick: Brick, pool: InputPool, clock: HostClock) -> None:
        self._parameter, self._pool, self._clock = brick.inputs[0], pool, clock
        self._key = key_of(self._parameter)
        of_model = math.ceil(min(brick.context_bytes, _MOST_BYTES) / max(1, self._parameter.type.num_bytes))
        self._number = min(_MOST_PARAMETERS, max(_FEWEST_PARAMETERS, of_model))
        (update,) = brick.layers
        self._class, self._options = optimizer_class(update), update.kwargs["options"]
        self.start: Times = _step_start(self._class, self._options, pool.device, clock)

    @property
    def num_parameters(self) -> int:
        """Parameters that are updated at once."""
        return self._number

    def in_context(self) -> list[dict[str, Times]]:
        """The same as when warm: a step goes through all of its parameters, and their state is made anew each time."""
        return [self.warm()]

    def warm(self) -> dict[str, Times]:
        """Time of a parameter's share of a step."""
        return {"update": _share(self._clock.time(self.stepped().step), self.start, self._number)}

    def stepped(self, number: int | None = None) -> Any:
        """The optimizer of so many parameters, by default those that are timed, after steps that make its state."""
        parameters = [torch.nn.Parameter(copied(self._pool.pristine(self._parameter, self._key)))
                      for _ in range(self._number if number is None else number)]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter).copy_(parameter.detach())
        optimizer = self._class(parameters, **self._options)
        warm_up(optimizer.step)
        return optimizer

    def kept_bytes(self) -> float:
        """Bytes that the optimizer keeps for a parameter between steps."""
        kept = [value for state in self.stepped(1).state.values() for value in state.values()]
        return float(sum(value.nbytes for value in kept if isinstance(value, Tensor)))

    def release(self) -> None:
        """Nothing is kept."""


def _share(times: Times, start: Times, number: int) -> Times:
    host_s = max(0.0, times[0] - start[0]) / number
    if times[1] is None or start[1] is None:
        return host_s, None
    return host_s, max(0.0, times[1] - start[1]) / number


def _step_start(made: Any, options: dict[str, Any], device: torch.device, clock: HostClock) -> Times:
    """What a step takes that has no gradient to update by."""
    optimizer = made([torch.nn.Parameter(torch.zeros(1, device=device))], **options)
    return _median(clock, optimizer.step)


def backward_start(device: torch.device, clock: HostClock) -> Times:
    """What a backward pass takes that computes nothing: from one number to that number's gradient."""
    leaf = torch.zeros(1, device=device, requires_grad=True)
    gradient = torch.ones(1, device=device)
    return _median(clock, torch.autograd.backward, leaf, gradient)


def _median(clock: HostClock, call: Any, *args: Any) -> Times:
    times = [clock.time(call, *args) for _ in range(_NUM_STARTS)]
    device = [device_s for _, device_s in times if device_s is not None]
    return median(host_s for host_s, _ in times), median(device) if device else None
