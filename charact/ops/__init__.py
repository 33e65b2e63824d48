"""Basic operations of given sizes: their definition, their work, and how to run them.

A kind of operation is one file in `kinds/` with an object `KIND`; a list of problems is one in `suites/` with `SUITE`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from charact.core.errors import UserError
from charact.core.plugins import modules_in

if TYPE_CHECKING:
    import torch

DIRECTIONS = ("forward", "backward_input", "backward_weight")
"""An operation's result, and its gradients by its input and by its weight."""


@dataclass(frozen=True)
class Problem:
    """An operation of given sizes; `text` names it and parses back, as in `gemm:3072x128x1024`."""

    operation: str
    text: str
    sizes: Mapping[str, int | float | str] = field(hash=False)
    suite: str | None = None
    set: str | None = None
    """Part of the suite, e.g. training."""
    convention: str | None = None
    """The suite's notation, if it differs from charact's."""
    forward_only: bool = False
    """Whether the suite has no gradients, as for inference."""

    def numbers(self, *names: str) -> list[int]:
        """Return sizes that are whole numbers."""
        return [int(self.sizes[name]) for name in names]


@dataclass(frozen=True)
class Prepared:
    """A problem prepared for one direction."""

    inputs: Callable[[], Sequence["torch.Tensor"]]
    """Returns new inputs: several sets are rotated, so that a cache does not hold them."""
    call: Callable[..., Any]
    """Runs the direction once on such inputs; its result is one or several tensors."""
    reference: Callable[..., "torch.Tensor"]
    """Returns, for the same inputs, the result in float64 on the CPU, or a part of it: see `compared`.

    It runs before the call, which may work in place.
    """
    compared: Callable[[Any], "torch.Tensor"]
    """Returns the part of a result that the reference has, as one tensor."""
    tolerance: float
    """Largest allowed error, over the reference's largest magnitude; the kind's docstring gives the reason."""
    excluded: Callable[..., Any] | None = None
    """Repeats, on the same inputs, the work that `call` does in addition to the operation; its time is subtracted."""


class Kind(Protocol):
    """A kind of operation; by default without gradients, FLOP and sparse matrices."""

    name: str
    syntax: str
    """Syntax of a problem, e.g. `gemm:MxNxK[:tn]`."""
    directions: tuple[str, ...] = DIRECTIONS[:1]
    """Measured directions, of `DIRECTIONS`."""

    def parse(self, sizes: str) -> Problem:
        """Return the problem from the text after the colon."""

    def flop(self, problem: Problem, direction: str) -> float | None:
        """Return the floating-point operations of one call; None if they are not counted, as in a copy."""
        return None

    def published_flop(self, problem: Problem, direction: str) -> tuple[float, str] | None:
        """Return the count of the problem's suite and its convention; None if it is the same."""
        return None

    def num_bytes(self, problem: Problem, direction: str, itemsize: int) -> float:
        """Return the bytes of inputs read and outputs written once by one call, for an element size in bytes."""

    def sparsity_frac(self, problem: Problem) -> float | None:
        """Return the share of zeros; None without sparse matrices."""
        return None

    def refusal(self, problem: Problem, precision: str, device: "torch.device") -> str | None:
        """Return why it is not supported, None if it is; by default that of an operation without matrix products."""
        from charact.ops.numerics import pointwise_refusal

        return pointwise_refusal(self.name, precision, device)

    def prepare(self, problem: Problem, direction: str, precision: str, device: "torch.device") -> Prepared:
        """Return the inputs and the call of a direction."""


class Suite(Protocol):
    """A list of problems."""

    name: str
    source: str
    sets: tuple[str, ...]
    """Its parts; empty if it has none."""

    def problems(self) -> list[Problem]:
        """Return every problem, with its suite and set."""


def all_kinds() -> dict[str, Kind]:
    """Return every kind of operation by name."""
    kinds: list[Kind] = [module.KIND for module in modules_in(f"{__name__}.kinds")]
    return {kind.name: kind for kind in kinds}


def all_suites() -> dict[str, Suite]:
    """Return every suite by name."""
    suites: list[Suite] = [module.SUITE for module in modules_in(f"{__name__}.suites")]
    return {suite.name: suite for suite in suites}


def parse_problem(text: str) -> Problem:
    """Return the problem from a text such as `gemm:3072x128x1024`."""
    name, colon, sizes = text.partition(":")
    kinds = all_kinds()
    if name not in kinds or not colon:
        raise UserError(f"--problem: '{text[:60]}' is not an operation: write one of "
                        f"{', '.join(kind.syntax for kind in kinds.values())}")
    return kinds[name].parse(sizes)
