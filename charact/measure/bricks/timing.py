"""Timing a brick with the cache state that it has in a model: cold weights and warm activations.

Rounds over all bricks and the weight pool make weights as cold as in a model that does not fit into the last-level
cache. If the model fits, untimed calls load the weights first. Caches nearer than the last level, and instruction
caches, would be overwritten by the model's other layers: other memory is read before each timed call.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median
from typing import Any, Protocol

import psutil
import torch
from torch import Tensor

from charact.bricks.aten import BrickFunction, optimizer_class
from charact.bricks.brick import Brick, BrickInput
from charact.bricks.captured_graph import type_of
from charact.measure.bricks.inputs import Arguments, InputPool, Tensors, copied, key_of
from charact.measure.microbench.call_timer import HostClock, Times
from charact.measure.microbench.operation_timing import cache_bytes, near_cache_bytes

METHODS = ("contextual", "paper")
"""With the cache state of a model; or warm, back to back, as in the paper."""

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


class Work(Protocol):
    """Timed work of a brick."""

    def in_context(self) -> list[dict[str, Times]]:
        """Return the times by phase of a visit's calls, with the cache state of a model."""

    def warm(self) -> dict[str, Times]:
        """Return the times by phase of one call directly after another one with the same inputs."""

    def release(self) -> None:
        """Release the inputs that warm calls hold."""


def stays_in_cache(brick: Brick, device: torch.device, *, training: bool = False) -> bool:
    """Return whether the weights of the brick's model stay in the last-level cache until the next iteration.

    In training, gradients and optimizer state count too.
    """
    return brick.context_bytes * (_TRAINING_FACTOR if training else 1) <= CACHE_FRAC * cache_bytes(device)


def num_new_pages() -> int:
    """Return the number of minor page faults of this process so far, on Windows of all page faults."""
    try:
        import resource  # Unix only
    except ImportError:
        memory: Any = psutil.Process().memory_info()
        return int(memory.num_page_faults)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def warm_up(call: Callable[[], object], fewest: int = 1) -> None:
    """Call at least `fewest` times, then until a call takes few new pages from the system, at most 7 times more."""
    for number in range(1, fewest + _MAX_EXTRA_CALLS + 1):
        before = num_new_pages()
        call()
        if number >= fewest and num_new_pages() - before <= _FEW_PAGES:
            return


def num_untimed(brick: Brick, *, cached: bool) -> int:
    """Return the minimum number of untimed calls of a visit: several if large weights stay in the cache."""
    return _UNTIMED_CALLS_LARGE if cached and brick.weights_bytes >= _LARGE_WEIGHTS_BYTES else _UNTIMED_CALLS


class CacheEvictor:
    """Overwrites the near caches by reading other memory, as the other layers of a model do between two calls.

    This evicts the operators' code, dispatch tables, page table entries and weights from the near caches. The inputs
    of the timed call are written afterwards and stay there.

    Args:
        brick: a brick of the model.
        device: device of the brick.
        training: as for `stays_in_cache`.
    """

    def __init__(self, brick: Brick, device: torch.device, *, training: bool = False) -> None:
        self._most_bytes = _NEAR_CACHES * near_cache_bytes(device)
        others = brick.context_bytes * (_TRAINING_FACTOR if training else 1) - brick.weights_bytes
        self.num_bytes = max(0, min(others, self._most_bytes))

    def evict(self) -> None:
        """Read other memory of `num_bytes`."""
        if self.num_bytes:
            _other_memory(self._most_bytes)[: self.num_bytes // 4].sum()


@cache
def _other_memory(num_bytes: int) -> Tensor:
    return torch.ones(num_bytes // 4)


class InContext(ABC):
    """A brick that is called with the cache state of its model.

    Each visit begins with untimed calls until one takes few new pages from the system. Before each timed call, other
    memory is read to overwrite the near caches. Each timed call gets other weights than the call before it, so that no
    cache holds them. If the model's weights fit into the last-level cache, timed calls get the same weights, after
    several untimed calls if they are large.

    *Error*: a model whose weights partly fit is between the two cases; inputs from earlier
    layers than the previous one are freshly written here, but may have left the cache in a model; consecutive layers
    of one type find their code in nearer caches in a model.
    """

    def __init__(self, brick: Brick, call: BrickFunction, pool: InputPool, clock: HostClock, *, training: bool) -> None:
        self._arguments = Arguments(brick, pool, training=training)
        self._call, self._clock, self._pool = call, clock, pool
        self._cached = stays_in_cache(brick, pool.device, training=training)
        self._num_untimed = num_untimed(brick, cached=self._cached)
        self._evictor = CacheEvictor(brick, pool.device, training=training)
        self._kept: tuple[Tensors, Tensors] | None = None

    @abstractmethod
    def timed(self, inputs: list[Tensor]) -> dict[str, Times]:
        """Return the times by phase of one call."""

    def in_context(self) -> list[dict[str, Times]]:
        """Return the times by phase of a visit's calls, with the cache state of a model."""
        arguments = self._arguments
        # Before the first call: later they could reuse the memory of its outputs, which is cached.
        weights = [arguments.weights() for _ in range(1 if self._cached else 1 + CALLS_A_VISIT)]
        warm_up(lambda: self.timed(arguments.call_with(weights[0] | arguments.others())), self._num_untimed)
        found = []
        for number in range(1, CALLS_A_VISIT + 1):
            self._evictor.evict()
            found.append(self.timed(arguments.call_with(weights[number % len(weights)] | arguments.others())))
        return found

    def warm(self) -> dict[str, Times]:
        """Return the times by phase of one call with the previous call's inputs, after an untimed first call."""
        weights, others = self._kept or (self._arguments.weights(), self._arguments.others())
        if self._kept is None:
            self.timed(self._arguments.call_with(weights | others))
        others = self._arguments.restored(others)
        self._kept = weights, others
        return self.timed(self._arguments.call_with(weights | others))

    def release(self) -> None:
        """Release the inputs that warm calls hold."""
        self._kept = None


class InferenceWork(InContext):
    """A brick in inference."""

    def __init__(self, brick: Brick, call: BrickFunction, pool: InputPool, clock: HostClock) -> None:
        super().__init__(brick, call, pool, clock, training=False)

    def timed(self, inputs: list[Tensor]) -> dict[str, Times]:
        """Return the time of the forward pass."""
        return {"forward": self._clock.time(self._call, inputs)}


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

    def __init__(self, brick: Brick, call: BrickFunction, pool: InputPool, clock: HostClock) -> None:
        super().__init__(brick, call, pool, clock, training=True)
        self._outputs: Sequence[Tensor] = ()

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
    """Run the backward pass and release its graph."""
    torch.autograd.backward(*roots.pop())


class GradientSumWork:
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

    def release(self) -> None:
        """Do nothing: no inputs are held."""


class UpdateWork:
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

    def in_context(self) -> list[dict[str, Times]]:
        """Return times of one step; they equal warm times, since each step has new parameters and state."""
        return [self.warm()]

    def warm(self) -> dict[str, Times]:
        """Return one parameter's share of a step's time."""
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

    def release(self) -> None:
        """Do nothing: no inputs are held."""


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
