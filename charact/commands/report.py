"""`charact report`."""

from pathlib import Path
from typing import Annotated

import typer

from charact.commands._shared import completion
from charact.commands._shared import options as opt
from charact.core.output import show, warn

_TITLE_BYTES = 65_536
"""Beginning of a report that contains its title."""


def command(
    runs: Annotated[list[Path], typer.Argument(
        help="Run directories, or directories of runs, such as runs/.", metavar="RUN",
        autocompletion=completion.runs)],
    to: Annotated[Path | None, typer.Option(
        help="File to write. Default: report.html in the run's directory; of several runs, here.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is no report of charact.")] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    partial: opt.Partial = False,
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
    from charact.commands._shared.runs import finished_runs, read_run
    from charact.core.files import check_writable, write_text
    from charact.record.presentable import redacted
    from charact.views.html.report import report
    from charact.views.terminal.progress import RunsProgress

    paths = [path for given in runs for path in finished_runs(given)]
    target = to or (runs[0] / "report.html" if paths == runs and len(runs) == 1 else Path("report.html"))
    force = force or _is_report(target)
    loaded = [redacted(read_run(path, partial=partial), anonymous=anonymous) for path in paths]
    check_writable(target, force=force, option="--to")
    with RunsProgress("Reading", len(loaded)) as progress:
        page = report(loaded, max_cases, progress.advance)
    write_text(target, page, force=force)
    show(f"Wrote {target}")
    if open_it:
        import webbrowser

        if not webbrowser.open(target.resolve().as_uri()):
            warn(f"no browser could be started: open {target} yourself")


def _is_report(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        beginning = file.read(_TITLE_BYTES)
    return beginning.startswith(b"<!doctype html>") and " – charact</title>".encode() in beginning
