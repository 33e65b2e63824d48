"""Timing a brick as it runs in a model: with weights that are as far away as there, and activations that are not.

How far away weights are is a matter of the model's size. Rounds over all bricks, and weights that take turns, let a
brick find the last cache as a model would leave it that does not fit; of one that fits, weights are read some times
before. What is nearer than the last cache, code included, a model's other layers have driven away: so much other memory
is read before each timed call.
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
"""In the context of a model; or warm, back to back, as in the paper."""

CACHE_FRAC = 0.5
"""Share of the last cache that a model's weights may take to stay there beside its activations."""
CALLS_A_VISIT = 2
"""Timed calls, behind those that are not."""
_UNTIMED_CALLS = 1
_UNTIMED_CALLS_LARGE = 8
_LARGE_WEIGHTS_BYTES = 500_000
"""A cache keeps what was read several times: on an AMD EPYC (Zen 5) 3 MB of weights take 390 µs the first time, 160 the
second, and 55 from the eighth on. What is smaller is there at once, and would only get its code nearer than it is in a
model: pooling, repeated so, comes out a fifth too short."""
_NEAR_CACHES = 4
"""Of other memory so many times what near caches hold is read. On an Intel Xeon (2 MB of L2) plain sums of 38 models at
batch 1 are 15.1 % off where half as much is read, and that only between uses of weights that stay in the last cache;
5.7 % with this, 9.1 % with twice as much. There it is also what the tables of addresses (TLB) reach."""
_MAX_EXTRA_CALLS = 7
"""Untimed calls at most that are made beside to have memory in place."""
_FEW_PAGES = 8
"""Pages that a call may take from the system when its memory is in place. One takes 0.5 to 8 µs to have."""
_TRAINING_FACTOR = 3
"""Gradients, and an optimizer's state, are as large as weights."""


class Work(Protocol):
    """What is timed of a brick, again and again."""

    def in_context(self) -> list[dict[str, Times]]:
        """Times by phase of a visit's calls, as they run in a model."""

    def warm(self) -> dict[str, Times]:
        """Times by phase of one call right after another one, with the same inputs."""

    def release(self) -> None:
        """Let go of the inputs that warm calls keep."""


def stays_in_cache(brick: Brick, device: torch.device, *, training: bool = False) -> bool:
    """Whether the weights of the brick's model are still in the cache when its next iteration needs them.

    In training their gradients and an optimizer's state come between.
    """
    return brick.context_bytes * (_TRAINING_FACTOR if training else 1) <= CACHE_FRAC * cache_bytes(device)


def num_new_pages() -> int:
    """Pages of memory that this process has taken from the system so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def warm_up(call: Callable[[], object], fewest: int = 1) -> None:
    """Call so often, and then until a call takes no new pages from the system: one that has run before takes none."""
    for number in range(1, fewest + _MAX_EXTRA_CALLS + 1):
        before = num_new_pages()
        call()
        if number >= fewest and num_new_pages() - before <= _FEW_PAGES:
            return


def num_untimed(brick: Brick, *, cached: bool) -> int:
    """Fewest calls at a visit before those that are timed: several of large weights that stay in the cache."""
    return _UNTIMED_CALLS_LARGE if cached and brick.weights_bytes >= _LARGE_WEIGHTS_BYTES else _UNTIMED_CALLS


class CacheEvictor:
    """What a model reads between two layers of a kind: it drives what they share from the nearer caches.

    That is their code, the tables of operators and addresses that lead to it, and weights that stay in the last cache.
    What a brick reads from the layer before it is written after this, and is near.

    Args:
        brick: of the model.
        device: where it runs.
        training: as for `stays_in_cache`.
    """

    def __init__(self, brick: Brick, device: torch.device, *, training: bool = False) -> None:
        self._most_bytes = _NEAR_CACHES * near_cache_bytes(device)
        others = brick.context_bytes * (_TRAINING_FACTOR if training else 1) - brick.weights_bytes
        self.num_bytes = max(0, min(others, self._most_bytes))

    def evict(self) -> None:
        """Read as much of other memory."""
        if self.num_bytes:
            _other_memory(self._most_bytes)[: self.num_bytes // 4].sum()


@cache
def _other_memory(num_bytes: int) -> Tensor:
    return torch.ones(num_bytes // 4)


class InContext(ABC):
    """A brick that is called as its model calls it.

    Untimed calls come first at each visit, until one takes no new pages from the system: a model that has run before
    takes none. Before each timed call, other memory drives
    from the nearer caches what the one before it left in them. The timed calls get other weights than the call before
    them, which no cache holds; only where a model's weights fit into the last cache they get the same, behind several
    untimed calls if they are large.

    *Error*: a model whose weights partly fit lies between the two ways; inputs that a layer reads from an earlier one
    than the last are written just before here; layers of a kind that follow at once find their code nearer in a model.
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
        """Times by phase of one call."""

    def in_context(self) -> list[dict[str, Times]]:
        """Times by phase of a visit's calls, as they run in a model."""
        arguments = self._arguments
        # Taken before the first call: made between two, they would lie where it had its memory.
        weights = [arguments.weights() for _ in range(1 if self._cached else 1 + CALLS_A_VISIT)]
        warm_up(lambda: self.timed(arguments.call_with(weights[0] | arguments.others())), self._num_untimed)
        found = []
        for number in range(1, CALLS_A_VISIT + 1):
            self._evictor.evict()
            found.append(self.timed(arguments.call_with(weights[number % len(weights)] | arguments.others())))
        return found

    def warm(self) -> dict[str, Times]:
        """Times by phase of one call with the inputs of the call before; an untimed one comes before the first."""
        weights, others = self._kept or (self._arguments.weights(), self._arguments.others())
        if self._kept is None:
            self.timed(self._arguments.call_with(weights | others))
        others = self._arguments.restored(others)
        self._kept = weights, others
        return self.timed(self._arguments.call_with(weights | others))

    def release(self) -> None:
        """Let go of the inputs that warm calls keep."""
        self._kept = None


class InferenceWork(InContext):
    """A brick in inference."""

    def __init__(self, brick: Brick, call: BrickFunction, pool: InputPool, clock: HostClock) -> None:
        super().__init__(brick, call, pool, clock, training=False)

    def timed(self, inputs: list[Tensor]) -> dict[str, Times]:
        """Time of the forward pass."""
        return {"forward": self._clock.time(self._call, inputs)}
