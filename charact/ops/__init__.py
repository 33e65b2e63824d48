"""Basic operations of given sizes: what they are, how much work they do, and how to run one.

A kind of operation is one file in `kinds/` with an object `KIND`, a list of problems one in `suites/` with `SUITE`.
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
    """How the suite writes it, where that is otherwise than here."""
    forward_only: bool = False
    """Whether the suite leaves the gradients out, as of networks that are served."""


@dataclass(frozen=True)
class Prepared:
    """A problem that is ready to run in one direction."""

    inputs: Callable[[], Sequence["torch.Tensor"]]
    """Makes inputs anew: several of them are rotated, so that a cache is not what is measured."""
    call: Callable[..., Any]
    """Runs the direction once on such inputs; its result is one tensor or several."""
    reference: Callable[..., "torch.Tensor"]
    """Given the same inputs as they are, the result in float64 on the CPU, or a part of it: see `compared`.

    Asked before the call, which may work in place.
    """
    compared: Callable[[Any], "torch.Tensor"]
    """The part of a result that the reference gives, as one tensor."""
    tolerance: float
    """Largest error allowed, over the reference's largest magnitude; the kind's docstring gives the reason."""


class Kind(Protocol):
    """A kind of operation."""

    name: str
    syntax: str
    """How a problem is written, e.g. `gemm:MxNxK[:tn]`."""

    def parse(self, sizes: str) -> Problem:
        """Problem from what follows the colon.

        Raises:
            UserError: it is malformed, or a size is too large.
        """

    def directions(self, problem: Problem) -> tuple[str, ...]:
        """Directions that are measured, of `DIRECTIONS`."""

    def flop(self, problem: Problem, direction: str) -> float | None:
        """Floating-point operations of one call; None where none are counted, as in a copy."""

    def published_flop(self, problem: Problem, direction: str) -> tuple[float, str] | None:
        """What the problem's suite counts in its place and by which convention; None where it counts the same."""

    def num_bytes(self, problem: Problem, direction: str, itemsize: int) -> float:
        """Bytes of inputs read and outputs written once by one call, of numbers of so many bytes."""

    def sparsity_frac(self, problem: Problem) -> float | None:
        """Share of zeros; None where all is dense."""

    def refusal(self, problem: Problem, precision: str, device: "torch.device") -> str | None:
        """Why it cannot run so; None where it can."""

    def prepare(self, problem: Problem, direction: str, precision: str, device: "torch.device") -> Prepared:
        """What to run."""


class Suite(Protocol):
    """A list of problems."""

    name: str
    source: str
    sets: tuple[str, ...]
    """Its parts; empty where it has none."""

    def problems(self) -> list[Problem]:
        """Every problem, with its suite and set."""


def all_kinds() -> dict[str, Kind]:
    """Every kind of operation by name."""
    kinds: list[Kind] = [module.KIND for module in modules_in(f"{__name__}.kinds")]
    return {kind.name: kind for kind in kinds}


def all_suites() -> dict[str, Suite]:
    """Every suite by name."""
    suites: list[Suite] = [module.SUITE for module in modules_in(f"{__name__}.suites")]
    return {suite.name: suite for suite in suites}


def parse_problem(text: str) -> Problem:
    """Problem from a text such as `gemm:3072x128x1024`.

    Raises:
        UserError: there is no such kind, or its sizes are malformed.
    """
    name, colon, sizes = text.partition(":")
    kinds = all_kinds()
    if name not in kinds or not colon:
        raise UserError(f"--problem: '{text[:60]}' is no operation: write one of "
                        f"{', '.join(kind.syntax for kind in kinds.values())}")
    return kinds[name].parse(sizes)
