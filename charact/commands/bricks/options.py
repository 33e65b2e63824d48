"""Options of `charact bricks`: what they mean, and how a command ends that a signal may end."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.commands._shared import options as opt
from charact.core.errors import UserError
from charact.core.output import warn

if TYPE_CHECKING:
    from charact.execution.interrupt import Interrupt

METHODS = ("contextual", "paper")
CUTS = ("chains", "paper", "heavy")
FALLBACKS = ("hooks",)

Suite = Annotated[Path, typer.Argument(metavar="SUITE", help="Directory of a suite of bricks.")]
InputSpec = Annotated[str | None, typer.Option(
    help="What models of your own are fed; see charact profile --help.")]
OwnModels = Annotated[list[str] | None, typer.Option(
    "--model", metavar="MODULE:NAME[(ARGS)]",
    help="A model of your own, or an exported program, that may be imported and run. Compositions name models, too, "
         "and may come from others: only what you name here is run. Once for each.")]
OwnLosses = Annotated[list[str] | None, typer.Option(
    "--loss", metavar="MODULE:NAME", help="Likewise its loss, where that is a function of your own.")]
MaxBytes = Annotated[str | None, typer.Option(
    metavar="SIZE", help="Most that a brick may take, and what a file may unpack to, as in 32GiB. Default: 16GiB for a "
                         "brick.")]
Compositions = Annotated[Path | None, typer.Option(
    help="Directory that tells which bricks make which model. Default: SUITE.private, beside the suite.")]


def parse_models(words: list[str]) -> list[str]:
    """Names of models, each once, in order."""
    return list(dict.fromkeys(part for word in words for part in opt.parse_list(word, "MODEL")))


def said_of_models(input_sizes: str | None, batch_sizes: str | None, variant: str | None, own: dict[str, Any]
           ) -> dict[str, Any]:
    """What options say of models; `own` is what they say of those that are imported."""
    return {"input_sizes": parse_sizes(input_sizes, "--input-sizes"),
            "batch_sizes": parse_sizes(batch_sizes, "--batch-sizes"), "variant": variant, "own": own}


def status_of(interrupt: "Interrupt", work: Callable[[], int]) -> int:
    """The exit status of what a signal may end, which then leaves nothing behind."""
    try:
        return work()
    except KeyboardInterrupt:
        warn("interrupted: nothing is written")
        return 128 + (interrupt.signal or signal.SIGINT)


def parse_sizes(text: str | None, option: str) -> list[int] | None:
    """Sizes, where any are named."""
    return None if text is None else opt.parse_sizes(text, option)


def parse_most_layers(text: str) -> int | None:
    """Most layers of a brick; None of `auto`.

    Raises:
        UserError: it is neither.
    """
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= len(text) <= 4 or int(text) < 1:
        raise UserError(f"-g: '{text[:40]}' is neither a number of layers from 1 to 9999 nor auto")
    return int(text)


def parse_share(share: float) -> float:
    """The share of the bricks that is timed.

    Raises:
        UserError: it is none.
    """
    if not 0 < share <= 1:
        raise UserError(f"--share: {share:g} is no share: give a number above 0, up to 1")
    return share
