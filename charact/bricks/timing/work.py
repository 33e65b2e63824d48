"""Timed calls of bricks: sequences of layers with the cache state of their model, gradient sums, and optimizer steps.

Rounds over all bricks and the weight pool make weights as cold as in a model that does not fit into the last-level
cache. If the model fits, untimed calls load the weights first. Caches nearer than the last level, and instruction
caches, would be overwritten by the model's other layers: other memory is read before each timed call.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median
from typing import Any

import torch
from torch import Tensor

from charact.bricks.aten import BrickFunction, optimizer_class
from charact.bricks.suite.brick import Brick, input_of
from charact.bricks.suite.captured_graph import type_of
from charact.bricks.timing.inputs import Arguments, InputPool, copied, key_of
from charact.measure.microbench.call_timer import HostClock, Times
from charact.measure.microbench.operation_timing import cache_bytes, near_cache_bytes

CACHE_FRAC = 0.5
"""Maximum share of the last-level cache for a model's weights to stay there next to its activations."""
CALLS_A_VISIT = 2
"""Timed calls of a visit, after the untimed ones."""
_UNTIMED_CALLS = 1
_UNTIMED_CALLS_LARGE = 8
_LARGE_WEIGHTS_BYTES = 500_000
"""Weights of at least this size (bytes) need several untimed calls to stay in the cache: on an AMD EPYC (Zen 5), 3 MB
take 390 µs in the first call, 160 in the second, and 55 from the eighth on. For smaller weights, more calls only
warm the instruction cache: pooling layers then take 20 % less time than in a model."""
_NEAR_CACHES = 4
"""Other memory to read, in multiples of the near caches. Chosen on an Intel Xeon (2 MB of L2): the plain sums of 38
models at batch 1 are off by 15.1 % at half as much (between cached weights only), 5.7 % at this, 9.1 % at twice as
much. It also covers the reach of the TLB there."""
_MAX_EXTRA_CALLS = 7
"""Maximum number of additional untimed calls until a call takes few new pages."""
_FEW_PAGES = 8
"""Maximum number of new pages of a call in steady state. A page fault takes 0.5 to 8 µs."""
_TRAINING_FACTOR = 3
"""Memory of weights, gradients and optimizer state, in multiples of the weights."""
_NUM_STARTS = 201
"""Number of timings of the start of a backward pass, and of a step."""
_FEWEST_PARAMETERS, _MOST_PARAMETERS = 4, 16
"""Range of the number of parameters in one timed step; the maximum limits the set-up time."""
_MOST_PARAMETER_BYTES = 48_000_000
"""Target size of these parameters (bytes)."""

Visit = list[dict[str, Times]]
"""Times by phase of each timed call."""


def num_new_pages() -> int:
    """Return the number of minor page faults of this process so far."""
    import resource  # Unix only, as is the timing of bricks

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def warm_up(call: Callable[[], object], fewest: int = 1) -> None:
    """Call at least `fewest` times, then until a call takes few new pages from the system, at most 7 times more."""
    for number in range(1, fewest + _MAX_EXTRA_CALLS + 1):
        before = num_new_pages()
        call()
        if number >= fewest and num_new_pages() - before <= _FEW_PAGES:
            return


@cache
def _other_memory(num_bytes: int) -> Tensor:
    return torch.ones(num_bytes // 4)


class SequenceWork:
    """A sequence of layers that is called with the cache state of its model; in training with its backward pass.

    Each visit begins with untimed calls until one takes few new pages from the system. Before each timed call, other
    memory is read, as the other layers of a model do: this evicts the operators' code, dispatch tables, page table
    entries and weights from the near caches. The inputs of the timed call are written afterwards and stay there. Each
    timed call gets other weights than the call before it, so that no cache holds them. If the model's weights (in
    training also gradients and optimizer state) fit into the last-level cache, timed calls get the same weights, after
    several untimed calls if they are large.

    In training every call has new leaves, so that gradients are not accumulated. The output gradients are random, and
    written between the two passes. The times include the start of a backward pass, which `backward_start` measures.

    *Error*: a model whose weights partly fit is between the two cases; inputs from earlier layers than the previous one
    are freshly written here, but may have left the cache in a model; consecutive layers of one type find their code in
    nearer caches in a model. A backward pass directly follows its forward pass, so saved tensors are more likely cached
    than in a model.
    """

    num_calls = 1

    def __init__(self, brick: Brick, call: BrickFunction, pool: InputPool, clock: HostClock, *, training: bool = False
                 ) -> None:
        self._arguments = Arguments(brick, pool, training=training)
        self._call, self._clock, self._pool, self._training = call, clock, pool, training
        model_bytes = brick.context_bytes * (_TRAINING_FACTOR if training else 1)
        self.stays_in_cache = model_bytes <= CACHE_FRAC * cache_bytes(pool.device)
        """Whether the weights of the brick's model stay in the last-level cache until the next iteration."""
        large = self.stays_in_cache and brick.weights_bytes >= _LARGE_WEIGHTS_BYTES
        self._num_untimed = _UNTIMED_CALLS_LARGE if large else _UNTIMED_CALLS
        self._most_evicted_bytes = _NEAR_CACHES * near_cache_bytes(pool.device)
        self.evicted_bytes = max(0, min(model_bytes - brick.weights_bytes, self._most_evicted_bytes))
        """Other memory that is read before each timed call."""
        self._outputs: Sequence[Tensor] = ()

    def visit(self) -> Visit:
        """Time the calls of a visit."""
        arguments = self._arguments
        # Before the first call: later they could reuse the memory of its outputs, which is cached.
        weights = [arguments.weights() for _ in range(1 if self.stays_in_cache else 1 + CALLS_A_VISIT)]
        warm_up(lambda: self._timed(arguments.call_with(weights[0] | arguments.others())), self._num_untimed)
        times = []
        for number in range(1, CALLS_A_VISIT + 1):
            self._evict()
            times.append(self._timed(arguments.call_with(weights[number % len(weights)] | arguments.others())))
        return times

    def _evict(self) -> None:
        if self.evicted_bytes:
            _other_memory(self._most_evicted_bytes)[: self.evicted_bytes // 4].sum()

    def _timed(self, inputs: list[Tensor]) -> dict[str, Times]:
        """Return the times of a forward pass and, if an output requires a gradient, of a backward pass."""
        if not self._training:
            return {"forward": self._clock.time(self._call, inputs)}
        times = {"forward": self._clock.time(self._forward, inputs)}
        carriers = [output for output in self._outputs if output.requires_grad]
        if carriers:
            like = [input_of(type_of(output), "activation", sample={"weight": "normal"}) for output in carriers]
            gradients = [copied(self._pool.pristine(each, key_of(each))) for each in like]
            self._outputs = ()
            roots = [(carriers, gradients)]
            del carriers
            times["backward"] = self._clock.time(_backward, roots)
        self._outputs = ()
        return times

    def _forward(self, inputs: list[Tensor]) -> None:
        self._outputs = self._call(inputs)


def _backward(roots: list[tuple[list[Tensor], list[Tensor]]]) -> None:
    torch.autograd.backward(*roots.pop())  # and releases the graph


class GradientSumWork:
    """A sum of two freshly written gradients."""

    num_calls = 1

    def __init__(self, brick: Brick, call: BrickFunction, pool: InputPool, clock: HostClock) -> None:
        self._arguments = Arguments(brick, pool, training=False)
        self._call, self._clock = call, clock

    def visit(self) -> Visit:
        """Time one call."""
        with torch.no_grad():
            warm_up(self._timed)
            return [{"forward": self._timed()}]

    def _timed(self) -> Times:
        return self._clock.time(self._call, self._arguments.call_with(self._arguments.others()))


class UpdateWork:
    """An optimizer's step for parameters of one type, after the steps that create their state.

    *Error*: the time of an empty step is subtracted, and the rest is divided evenly by the parameters. In a model with
    parameters of several sizes, the shared overhead per parameter may differ.
    """

    def __init__(self, brick: Brick, pool: InputPool, clock: HostClock) -> None:
        self._parameter, self._pool, self._clock = brick.inputs[0], pool, clock
        of_model = math.ceil(min(brick.context_bytes, _MOST_PARAMETER_BYTES) / max(1, self._parameter.num_bytes))
        self.num_calls = min(_MOST_PARAMETERS, max(_FEWEST_PARAMETERS, of_model))
        """Number of parameters in one step."""
        (update,) = brick.layers
        self._class, self._options = optimizer_class(update), update.kwargs["options"]
        without_gradient = self._class([torch.nn.Parameter(torch.zeros(1, device=pool.device))], **self._options)
        self.start = _median(clock, without_gradient.step)
        """Time of a step without gradients."""

    def visit(self) -> Visit:
        """Return one parameter's share of a step's time; each step has new parameters and state."""
        def share(whole_s: float, start_s: float) -> float:
            return max(0.0, whole_s - start_s) / self.num_calls

        times, start = self._clock.time(self.stepped().step), self.start
        device_s = None if times[1] is None or start[1] is None else share(times[1], start[1])
        return [{"update": (share(times[0], start[0]), device_s)}]

    def stepped(self) -> Any:
        """Return an optimizer after the steps that create its state."""
        parameters = [torch.nn.Parameter(copied(self._pool.pristine(self._parameter, key_of(self._parameter))))
                      for _ in range(self.num_calls)]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter).copy_(parameter.detach())
        optimizer = self._class(parameters, **self._options)
        warm_up(optimizer.step)
        return optimizer


Work = SequenceWork | GradientSumWork | UpdateWork


def backward_start(device: torch.device, clock: HostClock) -> Times:
    """Return the time of a trivial backward pass: of one number with respect to itself."""
    leaf = torch.zeros(1, device=device, requires_grad=True)
    gradient = torch.ones(1, device=device)
    return _median(clock, torch.autograd.backward, leaf, gradient)


def _median(clock: HostClock, call: Any, *args: Any) -> Times:
    times = [clock.time(call, *args) for _ in range(_NUM_STARTS)]
    device = [device_s for _, device_s in times if device_s is not None]
    return median(host_s for host_s, _ in times), median(device) if device else None
