"""Timing of bricks in training: forward and backward passes, gradient sums, and optimizer steps."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from charact.bricks.aten import BrickFunction, optimizer_class
from charact.bricks.suite.brick import Brick, BrickInput
from charact.bricks.suite.captured_graph import type_of
from charact.bricks.timing.inputs import Arguments, InContext, InputPool, Work, copied, key_of, warm_up
from charact.measure.microbench.call_timer import HostClock, Times

_NUM_STARTS = 201
"""Number of timings of the start of a backward pass, and of a step."""
_FEWEST_PARAMETERS, _MOST_PARAMETERS = 4, 16
"""Range of the number of parameters in one timed step; the maximum limits the set-up time."""
_MOST_BYTES = 48_000_000
"""Target size of these parameters (bytes)."""


class TrainingWork(InContext):
    """A brick in training: its forward pass under autograd, then its backward pass from random gradients.

    Every call has new leaves, so that gradients are not accumulated. The output gradients are written between the two
    passes. The times include the start of a backward pass, which `backward_start` measures.

    *Error*: the backward pass directly follows its forward pass, so saved tensors are more likely cached than in a
    model.
    """

    training = True
    _outputs: Sequence[Tensor] = ()

    def timed(self, inputs: list[Tensor]) -> dict[str, Times]:
        """Return the times of a forward pass and, if an output requires a gradient, of a backward pass."""
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
        """Return a freshly written random gradient."""
        like = BrickInput("activation", type_of(output), False, {"weight": "normal"})
        return copied(self._pool.pristine(like, key_of(like)))


def _backward(roots: list[tuple[list[Tensor], list[Tensor]]]) -> None:
    torch.autograd.backward(*roots.pop())  # and releases the graph


class GradientSumWork(Work):
    """A sum of two freshly written gradients."""

    def __init__(self, brick: Brick, call: BrickFunction, pool: InputPool, clock: HostClock) -> None:
        self._arguments = Arguments(brick, pool, training=False)
        self._call, self._clock = call, clock

    def in_context(self) -> list[dict[str, Times]]:
        """Return times of one call; they equal warm times, since the inputs were just written."""
        warm_up(self.warm)
        return [self.warm()]

    def warm(self) -> dict[str, Times]:
        """Return the time of the sum."""
        with torch.no_grad():
            return {"forward": self._clock.time(self._call, self._arguments.call_with(self._arguments.others()))}


class UpdateWork(Work):
    """An optimizer's step for parameters of one type, after the steps that create their state.

    *Error*: the time of an empty step is subtracted, and the rest is divided evenly by the parameters. In a model with
    parameters of several sizes, the shared overhead per parameter may differ.
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
        """Return the number of parameters in one step."""
        return self._number

    def warm(self) -> dict[str, Times]:
        """Return one parameter's share of a step's time; each step has new parameters and state."""
        return {"update": _share(self._clock.time(self.stepped().step), self.start, self._number)}

    def stepped(self) -> Any:
        """Return an optimizer after the steps that create its state."""
        parameters = [torch.nn.Parameter(copied(self._pool.pristine(self._parameter, self._key)))
                      for _ in range(self._number)]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter).copy_(parameter.detach())
        optimizer = self._class(parameters, **self._options)
        warm_up(optimizer.step)
        return optimizer


def _share(times: Times, start: Times, number: int) -> Times:
    host_s = max(0.0, times[0] - start[0]) / number
    if times[1] is None or start[1] is None:
        return host_s, None
    return host_s, max(0.0, times[1] - start[1]) / number


def _step_start(made: Any, options: dict[str, Any], device: torch.device, clock: HostClock) -> Times:
    """Return the time of an optimizer step without gradients."""
    optimizer = made([torch.nn.Parameter(torch.zeros(1, device=device))], **options)
    return _median(clock, optimizer.step)


def backward_start(device: torch.device, clock: HostClock) -> Times:
    """Return the time of a trivial backward pass: of one number with respect to itself."""
    leaf = torch.zeros(1, device=device, requires_grad=True)
    gradient = torch.ones(1, device=device)
    return _median(clock, torch.autograd.backward, leaf, gradient)


def _median(clock: HostClock, call: Any, *args: Any) -> Times:
    times = [clock.time(call, *args) for _ in range(_NUM_STARTS)]
    device = [device_s for _, device_s in times if device_s is not None]
    return median(host_s for host_s, _ in times), median(device) if device else None
