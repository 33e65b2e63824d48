"""`charact history`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charact.commands._shared import completion
from charact.commands._shared import options as opt
from charact.core.errors import UserError
from charact.core.output import show, warn

if TYPE_CHECKING:
    import pandas as pd

    from charact.analysis.history.index import Index

_NUM_ROWS = 40
_METRICS = completion.metric_names()


def command(
    runs: opt.Runs = None,
    case: Annotated[str | None, typer.Option(
        help="Name of a case, as in a report: resnet18-224-b8-train-fp32-cpu. Default: the only case.")] = None,
    metric: Annotated[str, typer.Option(
        help=f"What is shown: {', '.join(_METRICS)}.")] = "time",
    last: Annotated[int, typer.Option(min=1, help="Number of rows to print, the newest.")] = _NUM_ROWS,
    to: Annotated[Path | None, typer.Option(
        help="Also write the history to a file: .html (a chart) or .csv (texts escaped as by charact export).",
        metavar="FILE")] = None,
    force: opt.Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    quiet: opt.Quiet = False,
) -> None:
    """Show a case over time, and where its level changed.

    Each run is a row with its date, the commit of its working directory, its value, and the 95 % interval of the value
    over the run's iterations. A change point is where the level of several runs changes by more than their noise. It
    needs 10 runs with a value, and ruptures: pip install 'charact[history]'.

    The values are read from the records once, and kept in the user's cache.

    \b
      charact history runs --case resnet18-224-b8-train-fp32-cpu
      charact history runs --case resnet18-224-b8-train-fp32-cpu --metric peak_memory --to memory.html
    """  # noqa: D301  (click wants the character itself)
    from charact.analysis.history.series import chosen_case, history, metric_counts
    from charact.core.files import check_writable

    chosen = opt.parse_choice(metric, "--metric", _METRICS)
    if to is not None:
        if to.suffix not in (".html", ".csv"):
            raise UserError(f"--to {to}: its name must end in .html or .csv")
        check_writable(to, force=force, option="--to")
    index = _index(runs or [Path("runs")], quiet=quiet or as_json)
    name = chosen_case(index, case)
    counts = metric_counts(index, name)
    if chosen not in counts and not as_json:
        warn(f"no run has {chosen} of {name}: " + (f"--metric {', '.join(counts)}" if counts else "it never succeeded"))
    rows = history(index, name, chosen)
    if to is not None:
        _write(to, rows, name, chosen, force)
    if as_json:
        show(*rows.to_json(orient="records", indent=2).split("\n"))
    elif not quiet:
        from charact.views.tables.history_table import history_items
        from charact.views.terminal.renderer import print_items

        print_items(history_items(rows, name, chosen, last))
    if to is not None and not as_json:
        show(f"Wrote {to}")


def _index(runs: list[Path], *, quiet: bool) -> "Index":
    """Return the index of all finished runs at these places; report runs that cannot be read."""
    from charact.analysis.history.index import read_index
    from charact.commands._shared.runs import finished_runs
    from charact.views.terminal.progress import RunsProgress

    paths = list(dict.fromkeys(path for given in runs for path in finished_runs(given)))
    for path in paths:
        if not (path / "run.json").is_file():
            raise UserError(f"{path} holds no run.json: name a run directory, or a directory of runs")
    with RunsProgress("Indexing", len(paths), enabled=not quiet) as progress:
        index = read_index(paths, progress.advance)
    for facts in index.runs.values():
        if facts.problem is not None:
            warn(f"warning: a run is left out: {facts.problem}")
    return index


def _write(to: Path, rows: "pd.DataFrame", case: str, metric: str, force: bool) -> None:
    from charact.core.files import write_text
    from charact.core.text import spreadsheet_text

    if to.suffix == ".html":
        from charact.views.html.history import history_page

        text = history_page(rows, case, metric)
    else:
        texts = rows.map(lambda value: spreadsheet_text(value) if isinstance(value, str) else value)
        text = texts.assign(case=spreadsheet_text(case), metric=metric).to_csv(index=False)
    write_text(to, text, force=force)
