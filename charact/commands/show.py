"""`charact show`."""

import gc
from pathlib import Path
from typing import Annotated

import typer

from charact.commands._shared import completion
from charact.commands._shared import options as opt
from charact.core.errors import UserError
from charact.core.output import show, warn


def command(
    run: Annotated[Path, typer.Argument(
        metavar="RUN", help="Run directory; of a directory of runs, the newest run is shown.",
        autocompletion=completion.runs)] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; docs/show.md documents the keys.")] = False,
    as_markdown: Annotated[bool, typer.Option("--md", help="Print Markdown of at most 200 lines.")] = False,
    verbose: Annotated[bool, typer.Option(
        "--verbose", "-v", help="Also print bars of phases, operators and memory, and lines, of each case.")] = False,
    partial: opt.Partial = False,
) -> None:
    """Print the summary of a run, for people and for scripts.

    Of a watched program: what costs it time and memory, where, and what to do. Of each case: the verdict with its
    evidence and the potential saving, the time with its interval, phases, memory, the slowest operators and layers, the
    use of the device, counters, and what was not measured and why. JSON has numbers in base units, and null for what
    was not measured.

    \b
      charact show runs
      charact show runs/20261121-100000-resnet50-0a1b2c --md
      charact show runs --json | jq '.cases[] | {case, verdict: .verdict.verdict, time: .headline.median_s}'
    """  # noqa: D301  (click wants the character itself)
    if as_json and as_markdown:
        raise UserError("--json and --md exclude each other: leave one out")
    enabled = gc.isenabled()
    gc.disable()  # in so short a process, collecting frees nothing and takes 7 % of the time
    try:
        _show(run, as_json=as_json, as_markdown=as_markdown, verbose=verbose, partial=partial)
    finally:
        if enabled:
            gc.enable()


def _show(run: Path, *, as_json: bool, as_markdown: bool, verbose: bool, partial: bool) -> None:
    from charact.commands._shared.runs import finished_runs, read_run

    path = finished_runs(run)[-1]
    if path != run:
        warn(f"The newest run of {run}: {path}")
    loaded = read_run(path, partial=partial)
    if as_json:
        from charact.views.export.run_summary import lines_of, run_summary

        show(*lines_of(run_summary(loaded)))
    elif as_markdown:
        from charact.views.export.summary_markdown import summary_markdown

        show(*summary_markdown(loaded).split("\n"))
    else:
        from charact.core.console import Console
        from charact.views.summary import summary
        from charact.views.terminal.renderer import drawn

        Console().print(drawn(summary(loaded, verbose=verbose)))
