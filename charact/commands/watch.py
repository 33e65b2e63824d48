"""`charact watch`."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    partial: Annotated[list[Path], typer.Argument(
        help="Hidden directory of a run that is going on: runs/.partial-...; of several the one that is.")],
    of_run: Annotated[bool, typer.Option(
        "--of-run", hidden=True, help="Started by the run itself, in its own terminal.")] = False,
) -> int:
    """Show how a program that is being watched is doing.

    It is what `charact run --live` shows, in another terminal. Times and shares are of the last 10 seconds. What
    bounds the program is told by a plain rule: from 30 % of the time on, waiting for batches (data), communication,
    or what is no phase (other); else the largest phase is named. Where the output is no terminal, a line is printed
    every 5 seconds. It ends with the program; Ctrl-C ends it before.

    \b
      charact watch runs/.partial-*
    """  # noqa: D301  (click wants the character itself)
    from charact.commands._shared.watching import going_on, watch

    watch(going_on(partial), of_run=of_run)
    return 0
