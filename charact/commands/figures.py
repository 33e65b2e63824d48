"""`charact figures`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charact.commands._shared import completion
from charact.commands._shared import options as opt
from charact.core.errors import UserError
from charact.core.output import show, warn

if TYPE_CHECKING:
    from charact.record.reader import Run

_FORMATS = ("pdf", "svg", "png")


def command(
    run: Annotated[Path, typer.Argument(
        metavar="RUN|STUDY", help="Run directory; or a directory of runs, such as that of a study or of a sweep, whose "
                                  "cases are drawn together.", autocompletion=completion.runs)],
    to: Annotated[Path, typer.Option(metavar="DIR", help="Directory to write to.")] = Path("figures"),
    formats: Annotated[str, typer.Option("--format", help="pdf, svg, png, or several of them, separated by commas.",
                                         metavar="FORMATS")] = "pdf,svg,png",
    width: Annotated[str, typer.Option(help="Width of each figure, in in, cm, mm or pt: that of a column of the paper.",
                                       metavar="WIDTH")] = "3.3in",
    partial: opt.Partial = False,
) -> None:
    """Draw figures for papers, with captions that define them.

    A figure is a file <run>-<figure>.<format> of the given width, with text of 7 to 8 pt: TrueType in PDF, text in SVG,
    and 300 dots per inch in PNG. A file of that name is replaced. captions.md has a paragraph for each figure: what it
    shows, the unit, how it was obtained, by which pass, the number of iterations, and the machine, without its host
    name. A figure whose data the run lacks is not drawn, and a line names the reason. Needs seaborn: pip install
    'charact[figures]'.

    \b
      charact figures runs/<run> --to paper/figures --format pdf
      charact figures studies/northeastern-quick --width 84mm

    \b
    operator-types            share of each operator type, by case
    iteration-times           every iteration of each case, and its phases
    time-by-input-size        time against the input size, by phase and mode
    memory-by-input-size      peak memory against the input, by mode
    memory-estimates          estimated against measured peaks
    constructed-latency       latency constructed from bricks against the measured one
    published-training-times  this machine against the GPUs of two studies
    """  # noqa: D301  (click wants the character itself)
    from charact.commands._shared.runs import finished_runs, read_run
    from charact.record.presentable import redacted

    chosen = opt.parse_choices(formats, "--format", _FORMATS)
    width_in = _inches(width)
    if to.exists() and not to.is_dir():
        raise UserError(f"--to {to} is a file: name a directory")
    try:
        import seaborn  # noqa: F401  (only whether it is there)
    except ImportError as error:
        raise UserError("figures need seaborn: pip install 'charact[figures]'") from error
    if not run.exists():
        raise UserError(f"{run} does not exist: name a run directory, or a directory of runs")
    from charact.views.papers._writing import write_figures

    paths = finished_runs(run)
    runs: list[Run] = [redacted(read_run(path, partial=partial)) for path in paths]
    runs = [each for each in runs if each.entries]
    if not runs:
        raise UserError(f"{run} has no cases, so no figure: measure some, as in charact profile mlp")
    name = runs[0].run_id if paths == [run] else run.resolve().name
    written, missing = write_figures(runs, name, to, chosen, width_in)
    for figure, reason in missing.items():
        warn(f"not drawn: {figure}: {reason}")
    if not written:
        raise UserError(f"{run} has the data of no figure: see the reasons above")
    show(*(f"Wrote {to / file}" for file in written))


_INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}
_LEAST_IN, _MOST_IN = 2.0, 20.0


def _inches(text: str) -> float:
    """Return a width such as 84mm (in)."""
    number, unit = text.strip()[:-2].strip(), text.strip()[-2:]
    try:
        width_in = float(number) * _INCHES[unit]
    except (KeyError, ValueError):
        raise UserError(f"--width '{text[:40]}' is no width: give a number and in, cm, mm or pt, as in 3.3in"
                        ) from None  # fmt: skip
    if not _LEAST_IN <= width_in <= _MOST_IN:
        raise UserError(f"--width {text[:40]} is not possible: give {_LEAST_IN:g}in to {_MOST_IN:g}in, as in 3.3in")
    return width_in
