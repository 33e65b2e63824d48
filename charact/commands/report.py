"""`charact report`."""

from pathlib import Path
from typing import Annotated

import typer

from charact.core.output import show


def command(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, such as those below runs/.", metavar="RUN...")],
    to: Annotated[
        Path | None,
        typer.Option(help="File to write. Default: report.html in the run's directory; of several runs, here."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Read a killed run.")] = False,
    anonymous: Annotated[bool, typer.Option(
        "--anonymous", help="Remove names of the host and the user, paths, the commit and identifiers of GPUs."
    )] = False,
    max_cases: Annotated[int, typer.Option(
        min=0, help="Of several runs, show the first ones with up to this many cases in full, at least two. "
                    "The others are rows of the overview.", metavar="N")] = 8,
) -> None:
    """Write the HTML report of one or several runs.

    The file is self-contained and needs no network. It has no arguments of programs and no secrets, but it has the host
    name: remove that with --anonymous before you send the file to others. The report of many runs is a summary.
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
