"""charact report: one HTML file of one or more runs."""

from pathlib import Path
from typing import Annotated

import typer

from charact.core.output import show


def command(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, such as those below runs/.", metavar="RUN...")],
    to: Annotated[
        Path | None,
        typer.Option(help="File to write: report.html in the run's directory; of several runs, in the current one."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file where it exists.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Read what a killed run had written.")] = False,
    anonymous: Annotated[bool, typer.Option(
        "--anonymous", help="Leave out names of the host and the user, paths, the commit and identifiers of GPUs."
    )] = False,
    max_cases: Annotated[int, typer.Option(
        min=0, help="Of several runs, draw the first ones with up to this many cases in full; at least two runs are. "
                    "The others are rows of the overview.", metavar="N")] = 24,
) -> None:
    """Write the HTML report of one run or several.

    The file holds all it shows: it needs no network. It shows no arguments of programs and no secrets, but the name of
    the host. Leave that out with --anonymous before you send the file to others. Of many runs it is a summary.
    """
    from charact.commands._shared.partial_runs import read_run
    from charact.core.files import check_writable, write_text
    from charact.record.presentable import redacted
    from charact.views.html.report import report
    from charact.views.terminal.progress import RunsProgress

    target = to or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    loaded = [redacted(read_run(path, partial=partial), anonymous=anonymous) for path in runs]
    check_writable(target, force=force, option="--to")
    with RunsProgress("Reading", len(loaded)) as progress:
        page = report(loaded, max_cases, progress.advance)
    write_text(target, page, force=force)
    show(f"Wrote {target}")
