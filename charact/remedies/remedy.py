"""The type of a remedy: when it can be tried, how it is applied from outside, and the code that does the same."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from charact.core.errors import UserError
from charact.core.plugins import modules_in
from charact.core.text import did_you_mean
from charact.remedies.program import Program

if TYPE_CHECKING:
    from charact.analysis.findings._finding import Place

Numerics = Literal["same", "rounded", "changed"]
"""What a remedy may do to the results: nothing, another order of rounding, or numbers of another precision."""


@dataclass(frozen=True)
class Setting:
    """A remedy with its values.

    `values` are the arguments of `Remedy.apply`. `label` is the setting as code, without its place.
    """

    remedy: str
    values: Mapping[str, Any]
    label: str
    change: str
    """Code that does the same in the program, in one line; with `…` for what stays."""
    place: "Place | None" = None
    """Line of the call that `change` extends; None if it is a new line."""
    added: str = ""
    """Arguments to add to the call at `place`, as code; empty if `change` is a new line."""
    expected_frac: float = 0.0
    """Share of the program's time that it may save, by which settings are chosen."""
    least_iterations: int = 0
    """Number of iterations of a trial below which it has no effect."""


@dataclass(frozen=True)
class Remedy:
    """A remedy; `settings` returns what to try on a program, or the reason why it cannot be tried.

    `apply` changes PyTorch in the process of a trial, right after its import, before charact watches it. `environment`
    returns variables of that process. Without `--only`, settings that are expected to save little are not tried.
    """

    name: str
    settings: Callable[[Program], "list[Setting] | str"]
    apply: Callable[..., None] = field(default=lambda **values: None)
    environment: Callable[[Mapping[str, Any]], dict[str, str]] = field(default=lambda values: {})
    numerics: Numerics = "same"
    is_slow: bool = False
    """Whether its trials take much longer than the unchanged program's."""
    saves_memory: bool = False
    """Whether it lowers memory, too; then its settings are tried however little time they may save."""
    findings: tuple[str, ...] = ()
    """IDs of the findings whose remedy it applies, as in `charact.analysis.findings`."""


@cache
def all_remedies() -> dict[str, Remedy]:
    """Return the remedies by name."""
    remedies: list[Remedy] = [module.REMEDY for module in modules_in("charact.remedies.kinds")]
    return {remedy.name: remedy for remedy in remedies}


def find_remedies(names: list[str]) -> list[Remedy]:
    """Return the remedies with these names.

    Raises:
        UserError: a name is unknown, or there is none.
    """
    known = all_remedies()
    if not names:
        raise UserError(f"--only: give some of {', '.join(known)}")
    for name in names:
        if name not in known:
            hint = did_you_mean(name, list(known), f"choose from {', '.join(known)}")
            raise UserError(f"--only: unknown remedy '{name}': {hint}")
    return [known[name] for name in dict.fromkeys(names)]
