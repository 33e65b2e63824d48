"""Options of `charact bricks`: declarations and parsers, and the exit status of interrupted commands."""

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
    help="Inputs of your own models; see charact profile --help.")]
OwnModels = Annotated[list[str] | None, typer.Option(
    "--model", metavar="MODULE:NAME[(ARGS)]",
    help="Your own model, or an exported program, that may be imported and run. Compositions also name models, but may "
         "come from others: only models named here are run. Repeatable.")]
OwnLosses = Annotated[list[str] | None, typer.Option(
    "--loss", metavar="MODULE:NAME", help="Loss function of your own that may be imported. Repeatable.")]
MaxBytes = Annotated[str | None, typer.Option(
    metavar="SIZE", help="Memory limit of a brick, and of unpacked files, such as 32GiB. Default: 16GiB for a brick.")]
Compositions = Annotated[Path | None, typer.Option(
    help="Directory of the compositions, which list the bricks of each model. Default: SUITE.private, next to the "
         "suite.")]


def parse_models(words: list[str]) -> list[str]:
    """Return the names of models, each once, in order."""
    return list(dict.fromkeys(part for word in words for part in opt.parse_list(word, "MODEL")))


def model_options(input_sizes: str | None, batch_sizes: str | None, variant: str | None, own: dict[str, Any]
           ) -> dict[str, Any]:
    """Return the parsed options of models; `own` holds the options of imported models."""
    return {"input_sizes": parse_sizes(input_sizes, "--input-sizes"),
            "batch_sizes": parse_sizes(batch_sizes, "--batch-sizes"), "variant": variant, "own": own}


def exit_status(interrupt: "Interrupt", work: Callable[[], int]) -> int:
    """Run `work` and return its exit status, or that of an interrupted command that wrote nothing."""
    try:
        return work()
    except KeyboardInterrupt:
        warn("interrupted: nothing is written")
        return 128 + (interrupt.signal or signal.SIGINT)


def parse_sizes(text: str | None, option: str) -> list[int] | None:
    """Parse sizes, if given."""
    return None if text is None else opt.parse_sizes(text, option)


def parse_share(share: float) -> float:
    """Check the share of bricks to time.

    Raises:
        UserError: it is not above 0 and at most 1.
    """
    if not 0 < share <= 1:
        raise UserError(f"--share: {share:g} is not a share: give a number above 0, up to 1")
    return share
