"""`charact export`."""

from pathlib import Path
from typing import Annotated

import typer

from charact.core.output import show


def command(
    run: Annotated[Path, typer.Argument(help="Run directory, such as one below runs/.", metavar="RUN")],
    form: Annotated[str, typer.Option("--format", help="csv, json or parquet.", metavar="FORMAT")],
    to: Annotated[
        Path | None, typer.Option(help="Directory to write: <run>-<format> in the current directory.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the directory if it exists.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Read a killed run.")] = False,
) -> None:
    """Write a run's tables as CSV, JSON or Parquet.

    The manifest and a description of every column are written, too. In CSV, a text that begins with = + - @, a tab or a
    line break, which a spreadsheet could run as a formula, gets an apostrophe in front. To read such a text back,
    remove one apostrophe. Numbers, JSON and Parquet are unchanged.
    """
    from charact.commands._shared.partial_runs import read_run
    from charact.views.export.tables import export

    loaded = read_run(run, partial=partial)
    target = to or Path(f"{loaded.run_id}-{form}")
    names = export(loaded, form, target, force=force)
    show(f"Wrote {target}: {', '.join(names)}")
