"""Timing a brick with the cache state that it has in a model: cold weights and warm activations.

Rounds over all bricks and the weight pool make weights as cold as in a model that does not fit into the last-level
cache. If the model fits, untimed calls load the weights first. Caches nearer than the last level, and instruction
caches, would be overwritten by the model's other layers: other memory is read before each timed call.
"""

import resource
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from charact.bricks.brick import Brick
from charact.bricks.executable import BrickFunction
from charact.measure.bricks.inputs import Arguments, InputPool, Tensors
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
take 390 µs in the first call, 160 in the second, and 55 from the eighth on. For smaller weights, repeated calls only
warm the instruction cache too much: pooling then comes out 20 % too fast."""
_NEAR_CACHES = 4
"""Other memory to read, in multiples of the near caches. Chosen on an Intel Xeon (2 MB of L2): the plain sums of 38
models at batch 1 are off by 15.1 % at half as much (between cached weights only), 5.7 % at this, 9.1 % at twice as
much. It also covers the reach of the TLB there."""
_MAX_EXTRA_CALLS = 7
"""Maximum number of additional untimed calls until a call takes no new pages."""
_FEW_PAGES = 8
"""New pages that a call may take in steady state. A page fault takes 0.5 to 8 µs."""
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
    """Return the number of minor page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def warm_up(call: Callable[[], object], fewest: int = 1) -> None:
    """Call at least `fewest` times, and until a call takes no new pages from the system."""
    for number in range(1, fewest + _MAX_EXTRA_CALLS + 1):
        before = num_new_pages()
        call()
        if number >= fewest and num_new_pages() - before <= _FEW_PAGES:
            return


def num_untimed(brick: Brick, *, cached: bool) -> int:
    """Return the minimum number of untimed calls of a visit: several if large weights stay in the cache."""
    return _UNTIMED_CALLS_LARGE if cached and brick.weights_bytes >= _LARGE_WEIGHTS_BYTES else _UNTIMED_CALLS


class CacheEvictor:
    """Reads other memory, as a model's other layers do between two layers of a kind, to overwrite the near caches.

    This evicts the operators' code, dispatch tables and page table entries, and weights that stay in the last-level
    cache. Activations are written afterwards and stay near.

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

    Each visit begins with untimed calls until one takes no new pages from the system. Before each timed call, other
    memory is read to overwrite the near caches. Timed calls get other weights than the call before them, so that no
    cache holds them. If the model's weights fit into the last-level cache, timed calls get the same weights, after
    several untimed calls if they are large.

    *Error*: a model whose weights partly fit is between the two cases; inputs from layers before the previous one are
    freshly written here; consecutive layers of a kind find their code in nearer caches in a model.
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
