"""`charact watch`."""

from pathlib import Path
from typing import Annotated

import typer

from charact.commands._shared import completion


def command(
    partial: Annotated[list[Path], typer.Argument(
        metavar="RUN",
        help="Hidden directory of a running program or of its ranks: runs/.partial-...; of several, the running one.",
        autocompletion=completion.partial_runs)],
    of_run: Annotated[bool, typer.Option(
        "--of-run", hidden=True, help="Started by the run itself, in its own terminal.")] = False,
) -> int:
    """Show the progress of a watched program.

    This is the view of `charact run --live` in another terminal. Times and shares are of the last 10 seconds; after
    some 60,000 iterations, the time of an iteration is the median of the means of these seconds. The program is bound
    by waiting for batches (data), by communication, or by time outside of phases (other), if that takes at least 30 %
    of the time. Otherwise the largest phase is named. Of several ranks, each has a line with its two largest phases.
    Ranks wait for each other in backward and communication: one with a clearly smaller share of these is marked.
    Without a terminal, a line is printed every 5 seconds. The command ends with the program, or with Ctrl-C.

    \b
      charact watch runs/.partial-*
    """  # noqa: D301  (click wants the character itself)
    from charact.commands._shared.runs import check_unfinished
    from charact.commands._shared.watching import running_one, watch, watch_ranks
    from charact.record.rank_parts import is_job

    check_unfinished(partial)
    directory = running_one(partial)
    if is_job(directory):
        watch_ranks(directory)
    else:
        watch(directory, of_run=of_run)
    return 0
